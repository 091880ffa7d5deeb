"""``regard train transcribe`` as processes: kill -9 and --resume, two processes, and a model that learns to write."""

from __future__ import annotations

import json
import subprocess

import pytest

from cli_process import ENVIRONMENT, fork_command
from spelled_tones import write_spelled
from training_process import (
    assert_killed_run_ends_with_the_same_weights,
    assert_two_processes_have_the_losses_of_one,
    train,
)

NUMBERS = {"layers": 1, "width": 16, "heads": 2, "inner": 31, "kernel": 5}
SET = [part for name, value in NUMBERS.items() for part in ("--set", f"{name}={value}")]
SMALL = ["transcribe", "--data", "letters", *SET, "--warmup", "10", "--batch", "16", "--validate-every", "20",
         "--dtype", "float32"]  # fmt: skip


@pytest.fixture
def data(tmp_path):
    write_spelled(tmp_path / "letters", 46)
    return tmp_path


@pytest.mark.slow
def test_run_killed_at_random_times_ends_with_the_same_weights(regard_command, data):
    """With augmentation by random numbers, and with sounds that are decoded in threads."""
    more = ["--augment", "strong", "--memory", "0"]
    assert_killed_run_ends_with_the_same_weights(data, [*SMALL, *more], regard_command)


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one(data):
    """There are 41 training sounds, so the last batch of an epoch has 9: rows of both processes differ in number."""
    options = [*SMALL, "--augment", "strong", "--set", "dropout=0", "--steps", 30, "--rate", 1e-3, "--average", 1]
    assert_two_processes_have_the_losses_of_one(data, options)


@pytest.mark.slow
def test_train_then_transcribe(data):
    """Tones of three pitches become letters."""
    options = [*SMALL, "--set", "dropout=0", "--augment", "none", "--steps", 120, "--rate", 1e-2, "--average", 1]
    run = train(data, "m", options, start=fork_command())
    assert run.returncode == 0, run.stderr
    assert "Conformer tiny, 8,000 samples a second, 64 bands" in run.stderr
    assert "3 characters: 'a', 'b', 'c'" in run.stderr
    assert "m: character error rate 0." in run.stderr
    assert "try: regard transcribe --model m SOUND.wav" in run.stderr
    config = json.loads((data / "m" / "config.json").read_text())
    assert (config["head"], config["id2label"]) == ("ctc", {"0": "a", "1": "b", "2": "c"})
    measured = subprocess.run(
        [*fork_command(), "evaluate", "transcribe", "--model", "m", "--data", "letters", "--format", "json"],
        cwd=data, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert measured.returncode == 0, measured.stderr
    assert json.loads(measured.stdout)["character_error_rate"] < 0.1
