"""``regard train clip`` as processes: kill -9 and --resume, two processes, and a model that learns to find texts."""

from __future__ import annotations

import json
import subprocess

import pytest

from captioned_files import write_captioned
from cli_process import ENVIRONMENT, fork_command
from training_process import (
    assert_killed_run_ends_with_the_same_weights,
    assert_two_processes_have_the_losses_of_one,
    train,
)

NUMBERS = {"layers": 1, "width": 16, "heads": 2, "inner": 31, "projection": 11}
SET = [part for tower in ("text", "vision") for name, value in NUMBERS.items()
       for part in ("--set", f"{tower}.{name}={value}")]  # fmt: skip
SMALL = ["clip", "--data", "photos", *SET, "--warmup", "10", "--batch", "16", "--validate-every", "20",
         "--dtype", "float32"]  # fmt: skip


@pytest.fixture
def data(tmp_path):
    write_captioned(tmp_path / "photos", 46)
    return tmp_path


@pytest.mark.slow
def test_run_killed_at_random_times_ends_with_the_same_weights(regard_command, data):
    """With augmentation by random numbers, and with pictures that are decoded in threads."""
    assert_killed_run_ends_with_the_same_weights(data, [*SMALL, "--flip", "--memory", "0"], regard_command)


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one(data):
    """There are 41 training pairs, so the last batch of an epoch has 9: rows of both processes differ in number."""
    options = [*SMALL, "--steps", 30, "--rate", 1e-3, "--average", 1]
    assert_two_processes_have_the_losses_of_one(data, options)


@pytest.mark.slow
def test_train_then_classify(data):
    """Colours and directions of stripes are found by words."""
    options = [*SMALL, "--crop", 0, "--steps", 150, "--rate", 3e-3, "--average", 1]
    run = train(data, "m", options, start=fork_command())
    assert run.returncode == 0, run.stderr
    assert "m: recall@1 1.000 among 5 held-out pairs" in run.stderr
    assert "try: regard classify --model m PICTURE.jpg" in run.stderr
    assert json.loads((data / "m" / "config.json").read_text())["model_type"] == "clip"
    said = subprocess.run(
        [*fork_command(), "classify", "--model", "m", "photos/00.png", "photos/04.png", "photos/08.png",
         "--labels", "red rows,green columns,blue plain"],
        cwd=data, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    assert [line.split("\t")[0] for line in said.stdout.splitlines()] == ["red rows", "green columns", "blue plain"]
