"""``python -m benchmarks.learning.train_recall``: recall of a token by its distance, with models of one size.

A GRU, a convolution, the scan family and dot-product attention learn the same sequences in the same skeleton
(``benchmarks.learning.recall``, ``recall_models``). Writes results.json and the plot, recall-light.svg and
recall-dark.svg, and prints a table. The same command resumes interrupted runs. ``--publish`` writes results and plot to
this repository too, where ``python -m benchmarks.translation.report`` reads them for docs/results.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import atomic_write
from benchmarks.learning import recall_plot, report, results
from benchmarks.learning.program import make_parser
from benchmarks.learning.recall import RecallProblem
from benchmarks.learning.recall_models import check_model, count_weights, default_models
from benchmarks.learning.recall_task import RecallTask
from benchmarks.learning.report import RECALL
from benchmarks.machine import machine, versions
from benchmarks.optional_imports import missing_package_error
from regard.errors import RegardError
from regard.train import Schedule, Settings, run

_VALIDATIONS = 30
"""Validations of a model while it is trained: the points of its curve."""
_UNSHARED = ("out", "models", "device", "publish")
"""Options that do not change what is measured of a model."""


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser("train_recall", __doc__, "trained/recall", "seed", "minutes", "device")
    parser.add_argument(
        "--models", metavar="NAMES", help="gru,convolution,dot_product,..; default: all of the comparison"
    )
    parser.add_argument("--steps", type=int, default=1500, help="steps of each model")
    parser.add_argument("--octaves", type=int, default=7, metavar="N", help="distances from 2 to 2^(N+1) - 1")
    parser.add_argument("--length", type=int, default=320, metavar="N", help="tokens of a sequence")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32, metavar="N", help="sequences in a step")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=50)
    return parser.parse_args()


def train_model(name: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Train a model, or resume its run, and measure its accuracy by distance.

    Time is that of the processor, over all threads: what training costs, whatever else runs beside it. It is unknown
    for a run that was interrupted.
    """
    from safetensors.torch import load_model

    problem = RecallProblem(asked.octaves, asked.length)
    task = RecallTask(problem, name, width=asked.width, heads=asked.heads, batch=asked.batch)
    settings = Settings(
        seed=asked.seed,
        schedule=Schedule("constant", peak=asked.rate, warmup=asked.warmup),
        steps=asked.steps,
        minutes=asked.minutes,
        patience=0,
        average=1,
        precision="float32",
        validate_every=max(1, asked.steps // _VALIDATIONS),
    )
    folder = asked.out / name
    run_folder = asked.out / f"{name}.run"
    resume, began = (run_folder / "run.json").exists(), time.process_time()
    trained = run(task, settings, folder, resume=resume, device=asked.device)
    processor_seconds = None if resume else time.process_time() - began
    load_model(task.model, folder / "model.safetensors")
    octaves = task.accuracy_by_octave()
    return {
        "options": shared_options(asked),
        "octaves": {octave: round(accuracy, 4) for octave, accuracy in octaves.items()},
        "accuracy": round(sum(octaves.values()) / len(octaves), 4),
        "weights": count_weights(task.model),
        "inner": task.model.inner,
        "steps": trained.steps,
        "processor seconds": None if processor_seconds is None else round(processor_seconds, 1),
        "curve": read_curve(run_folder / "metrics.jsonl"),
        "machine": machine(),
        "versions": versions(),
    }


def read_curve(metrics: Path) -> list[tuple[int, float]]:
    """The step and the accuracy at each validation, from the metrics of a run."""
    lines = map(json.loads, metrics.read_text(encoding="utf-8").splitlines())
    found = {one["step"]: one["accuracy"] for one in lines if one["kind"] == "validation"}
    return [(step, round(accuracy, 4)) for step, accuracy in found.items()]


def shared_options(asked: argparse.Namespace) -> dict[str, Any]:
    """The options that results must share to be compared."""
    return {name: value for name, value in vars(asked).items() if name not in _UNSHARED}


def train_models(asked: argparse.Namespace) -> dict[str, Any]:
    """Train all models; write results.json, and return the results with these options, by model."""
    names = default_models() if asked.models is None else asked.models.split(",")
    for name in names:
        check_model(name)
    found: dict[str, Any] = {}
    for name in names:
        print(f"{name}: {asked.steps:,} steps", file=sys.stderr)
        found = results.add(asked.out / "results.json", name, train_model(name, asked))
    return {name: one for name, one in found.items() if one["options"] == shared_options(asked)}


def main() -> int:
    """Train all models, write the results and the plot, and print the table."""
    asked = parse_options()
    if importlib.util.find_spec("matplotlib") is None:
        raise missing_package_error("matplotlib")
    found = train_models(asked)
    for path in recall_plot.write_plots(found, asked.out):
        print(path, file=sys.stderr)
    if asked.publish:
        atomic_write.write(RECALL.path, json.dumps(found, indent=2) + "\n")
        recall_plot.write_plots(found, report.ASSETS)
    print(RECALL.table(found))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RegardError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
