"""Train and evaluate classifiers with the commands `regard train classify` and `regard evaluate classify`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.learning import results
from benchmarks.machine import machine, versions
from benchmarks.measured_process import run_and_measure
from regard.train.run_folder import RunFolder


def train_table(out: Path, runs: Mapping[str, Sequence[str]], test: Sequence[str]) -> dict[str, Any]:
    """Train and evaluate by the options of each of ``runs``; write results.json into ``out``, and return all results.

    Results that were measured with the same options are kept, and interrupted runs are resumed.
    """
    path = out / "results.json"
    found = results.read(path)
    for name, options in runs.items():
        if found.get(name, {}).get("options") == " ".join(options):
            print(f"{name}: measured already, in {path}", file=sys.stderr)
            continue
        print(name, file=sys.stderr)
        found = results.add(path, name, train_and_evaluate(out / name.replace(", ", "-"), options, test))
    return found


def train_and_evaluate(model: Path, options: Sequence[str], test: Sequence[str]) -> dict[str, Any]:
    """Train a classifier of texts or pictures by ``options``, then evaluate by ``test``, options with the test data.

    Returns accuracy, macro F1, calibration error, and what ``train_model`` measures.
    """
    measured = train_model(model, "classify", options)
    evaluate = [sys.executable, "-m", "regard", "evaluate", "classify", "--model", str(model), *test]
    evaluate += ["--device", "cuda"] if trains_on_gpu(options) else []
    done = subprocess.run([*evaluate, "--format", "json"], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)  # the command has said why
    scores = json.loads(done.stdout)
    things = "pictures" if "pictures" in scores else "texts"
    names = (things, "accuracy", "baseline", "macro_f1", "loss", "calibration_error")
    return {"options": " ".join(options), **{name: scores[name] for name in names}, **measured}


def trains_on_gpu(options: Sequence[str]) -> bool:
    """Whether a training by these options takes a GPU, as it does if there is one and no other device is named."""
    return torch.cuda.is_available() and "--device" not in options


def train_model(model: Path, task: str, options: Sequence[str]) -> dict[str, Any]:
    """Train by the options of ``regard train TASK``, or resume an interrupted run, as ``measure_training``."""
    return measure_training(model, [sys.executable, "-m", "regard", "train", task, "--out", str(model), *options])


def measure_training(model: Path, command: Sequence[str]) -> dict[str, Any]:
    """Run a command that trains a model into the folder ``model``, with --resume if it was interrupted.

    Returns what the model folder says about its training, the steps and seconds of training, those before an
    interruption included, the peak memory of this process in GB, and the processor time of all its threads: what
    training costs, whatever else ran beside it. None for a run that was interrupted.
    """
    run = RunFolder(model.with_name(f"{model.name}.run"))
    resumed = run.has_run
    memory, processor_seconds = run_and_measure([*command, *["--resume"] * resumed])
    last = run.load_last()
    assert last is not None  # a run that ends writes a checkpoint
    return {
        "training": json.loads((model / "about.json").read_text(encoding="utf-8")),
        "steps": last.progress.step,
        "seconds": round(last.progress.seconds, 1),
        "processor seconds": None if resumed else round(processor_seconds, 1),
        "memory GB": round(memory, 2),
        "machine": machine(),
        "versions": versions(),
    }
