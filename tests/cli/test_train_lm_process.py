"""``regard train lm`` as two processes."""

from __future__ import annotations

import pytest

from small_language_models import write_documents
from training_process import assert_two_processes_have_the_losses_of_one

SMALL = ["lm", "--data", "texts", "--set", "layers=1", "--set", "width=32", "--warmup", "10", "--batch", "7",
         "--block", "31", "--vocabulary", "290", "--validate-every", "20", "--dtype", "float32"]  # fmt: skip


@pytest.fixture
def data(tmp_path):
    write_documents(tmp_path / "texts", 211)
    return tmp_path


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one(data):
    assert_two_processes_have_the_losses_of_one(data, [*SMALL, "--steps", 30, "--rate", 1e-3, "--average", 1])
