"""``regard train classify`` as processes: two processes, and in bfloat16."""

from __future__ import annotations

import json

import pytest

from small_classifiers import write_texts
from training_process import (
    assert_two_processes_have_the_losses_of_one,
    train,
)

SMALL = ["classify", "--data", "texts.tsv", "--set", "layers=1", "--set", "width=32", "--set", "inner=37", "--warmup",
         "10", "--batch", "17", "--vocabulary", "350", "--validate-every", "20", "--dtype", "float32"]  # fmt: skip


@pytest.fixture
def data(tmp_path):
    write_texts(tmp_path / "texts.tsv")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--labels", "several", "--class-weights", "balanced"]])
def test_two_processes_have_the_losses_of_one(data, more):
    same = ["--set", "dropout=0", "--steps", 30, "--rate", 1e-3, "--average", 1]
    assert_two_processes_have_the_losses_of_one(data, [*SMALL, *same, *more])


@pytest.mark.slow
def test_training_in_bfloat16(data):
    result = train(data, "m", [*SMALL, "--steps", 60, "--rate", 5e-3, "--dtype", "bfloat16"])
    assert result.returncode == 0, result.stderr
    assert json.loads((data / "m" / "about.json").read_text())["validation"]["accuracy"] > 0.9
