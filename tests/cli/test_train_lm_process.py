"""``regard train lm`` as processes: killed at random times, interrupted, and two processes."""

from __future__ import annotations

import pytest

from small_language_models import language_model, write_documents
from training_process import (
    assert_ctrl_c_saves_a_checkpoint,
    assert_killed_run_ends_with_the_same_weights,
    assert_two_processes_have_the_losses_of_one,
)

SMALL = ["lm", "--data", "texts", "--set", "layers=1", "--set", "width=32", "--warmup", "10", "--batch", "7",
         "--block", "31", "--vocabulary", "290", "--validate-every", "20", "--dtype", "float32"]  # fmt: skip


@pytest.fixture
def data(tmp_path):
    write_documents(tmp_path / "texts", 211)
    return tmp_path


@pytest.mark.parametrize("more", [["--set", "dropout=0.1"], pytest.param(["--model", "llama"], marks=pytest.mark.slow)])
def test_run_killed_at_random_times_ends_with_the_same_weights(regard_command, data, more):
    assert_killed_run_ends_with_the_same_weights(data, [*SMALL, *more], regard_command)


@pytest.mark.slow
def test_killed_run_of_adapters_ends_with_the_same_weights(regard_command, data):
    language_model("llama").save(data / "start")
    options = ["lm", "--data", "texts", "--from", "start", "--lora", 3, "--batch", 7, "--validate-every", 20]
    assert_killed_run_ends_with_the_same_weights(data, [*options, "--dtype", "float32"], regard_command)


@pytest.mark.slow
def test_ctrl_c_saves_a_checkpoint_and_suggests_resume(regard_command, data):
    assert_ctrl_c_saves_a_checkpoint(data, [*SMALL, "--epochs", 100000], regard_command)


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one(data):
    assert_two_processes_have_the_losses_of_one(data, [*SMALL, "--steps", 30, "--rate", 1e-3, "--average", 1])
