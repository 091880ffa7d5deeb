"""``regard train gato`` as processes: killed at random times, interrupted, and as two processes."""

from __future__ import annotations

import pytest

from picture_files import write_folders
from small_language_models import write_documents
from training_process import (
    assert_ctrl_c_saves_a_checkpoint,
    assert_killed_run_ends_with_the_same_weights,
    assert_two_processes_have_the_losses_of_one,
)

SMALL = ["--set", "layers=1", "--set", "width=32", "--set", "inner=37", "--set", "patch_channels=8", "--warmup", "10",
         "--validate-every", "20", "--dtype", "float32", "--experience", "211", "--batch", "5", "--length", "47",
         "--games", "1"]  # fmt: skip
GATO = ["gato", "--task", "Pendulum-v1", "--text", "texts", *SMALL]


@pytest.fixture
def data(tmp_path):
    write_documents(tmp_path / "texts", 211)
    write_folders(tmp_path / "shapes", count=7)
    return tmp_path


@pytest.mark.slow
def test_run_killed_at_random_times_ends_with_the_same_weights(regard_command, data):
    options = [*GATO, "--pictures", "shapes", "--set", "dropout=0.1", "--episodes", "recorded"]
    assert_killed_run_ends_with_the_same_weights(data, options, regard_command)


@pytest.mark.slow
def test_ctrl_c_saves_a_checkpoint_and_suggests_resume(regard_command, data):
    assert_ctrl_c_saves_a_checkpoint(data, [*GATO, "--steps", 100000], regard_command)


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one(data):
    """Most batches of one of the processes have no picture, and so no gradient of patches but 0."""
    options = [*GATO, "--steps", 30, "--rate", 1e-3, "--average", 1]
    assert_two_processes_have_the_losses_of_one(data, options)
