"""Train and evaluate a classifier with the commands `regard train classify` and `regard evaluate classify`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import machine, versions


def train_and_evaluate(model: Path, options: Sequence[str], test: Sequence[str]) -> dict[str, Any]:
    """Train by ``options``, or resume an interrupted run, then evaluate by ``test``, options with the test data.

    Returns accuracy, macro F1, calibration error, what the model folder says about its training, the seconds of this
    process and its peak memory in GB.
    """
    command = [sys.executable, "-m", "regard", "train", "classify", "--out", str(model), *options]
    if model.with_name(f"{model.name}.run").exists():
        command.append("--resume")
    began = time.monotonic()
    memory = _run_and_measure_memory(command)
    seconds = time.monotonic() - began
    evaluate = [sys.executable, "-m", "regard", "evaluate", "classify", "--model", str(model), *test]
    done = subprocess.run([*evaluate, "--format", "json"], stdout=subprocess.PIPE, text=True, check=True)
    scores = json.loads(done.stdout)
    about = json.loads((model / "about.json").read_text(encoding="utf-8"))
    names = ("texts", "accuracy", "baseline", "macro_f1", "loss", "calibration_error")
    return {
        "options": " ".join(options),
        **{name: scores[name] for name in names},
        "training": about,
        "seconds": round(seconds, 1),
        "memory GB": round(memory, 2),
        "machine": machine(),
        "versions": versions(),
    }


def _run_and_measure_memory(command: Sequence[str]) -> float:
    """Run a command, and return the peak memory of its process in GB."""
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)  # this process only; getrusage has the maximum over all
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return usage.ru_maxrss * 1024 / 1e9
