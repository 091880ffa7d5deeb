"""Experiments: what is trained, with which options, what is measured of it, and where the results are shown.

An experiment is declared in a file of its own, ``train_*.py``, and runs as ``python -m benchmarks.learning.train_*``:
each training in turn, unless results.json has its result for the same options. An interrupted training is resumed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

import torch

from benchmarks.learning import results
from benchmarks.learning.report import Report
from benchmarks.machine import machine, versions
from benchmarks.measured_process import run_and_measure
from benchmarks.optional_imports import missing_package_error
from regard.errors import RegardError
from regard.train.run_folder import RunFolder

Trainings = dict[str, Any]
"""The options of each training by its name, all that decides its result: those of a command, or values by name."""


def _as_they_are(asked: argparse.Namespace, found: dict[str, Any]) -> dict[str, Any]:
    return found


def _without_preparation(asked: argparse.Namespace, trainings: Trainings) -> None:
    """Most experiments take data that are there."""


@final
@dataclass(frozen=True)
class Experiment:
    """Trainings that are compared.

    Args:
        program: name of its file in this package.
        description: docstring of its file.
        report: section of docs/results.md with its results.
        add_options: adds options to those of all experiments.
        trainings: makes the options of each training from those of the command line.
        measure: trains by the options of a training into the folder of its model, and returns its result.
        shared: names of common options: seed, dtype, minutes, device.
        prepare: does what comes before the trainings that are not measured yet.
        choose: makes the results that are shown and published.
        plots: whether plots are written beside the results, too, and not only with --publish.
    """

    program: str
    description: str | None
    report: Report
    add_options: Callable[[argparse.ArgumentParser], None]
    trainings: Callable[[argparse.Namespace], Trainings]
    measure: Callable[[argparse.Namespace, Path, Any], dict[str, Any]]
    shared: tuple[str, ...] = ()
    prepare: Callable[[argparse.Namespace, Trainings], None] = _without_preparation
    choose: Callable[[argparse.Namespace, dict[str, Any]], dict[str, Any]] = _as_they_are
    plots: bool = False

    def parse_options(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        """Parse the command line."""
        program = f"python -m benchmarks.learning.{self.program}"
        parser = argparse.ArgumentParser(prog=program, description=self.description)
        out = Path("trained") / self.report.name
        parser.add_argument("--out", type=Path, default=out, metavar="FOLDER", help="models, results")
        if "seed" in self.shared:
            parser.add_argument("--seed", type=int, default=1)
        if "dtype" in self.shared:
            parser.add_argument(
                "--dtype", default="float32", choices=("float32", "bfloat16"), help="of matrix products"
            )
        if "minutes" in self.shared:
            parser.add_argument("--minutes", type=float, help="most minutes of each training; default: no limit")
        if "device" in self.shared:
            parser.add_argument("--device", help="cpu; default: a GPU if there is one")
        parser.add_argument("--publish", action="store_true", help="write results and plots to this repository too")
        self.add_options(parser)
        return parser.parse_args(arguments)

    def run(self, asked: argparse.Namespace) -> dict[str, Any]:
        """Run all trainings that are not measured yet; write results.json, and return the results that are shown."""
        path, trainings = asked.out / "results.json", self.trainings(asked)
        asked.out.mkdir(parents=True, exist_ok=True)
        found = results.read(path)
        missing = {}
        for name, options in trainings.items():
            if found.get(name, {}).get("options") == _record(options):
                print(f"{name}: measured already, in {path}", file=sys.stderr)
            else:
                missing[name] = options
        self.prepare(asked, missing)
        for name, options in missing.items():
            print(name, file=sys.stderr)
            found = results.add(
                path, name, {"options": _record(options), **self.measure(asked, model_folder(asked, name), options)}
            )
        return self.choose(asked, found)

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run the experiment of a command line, print the table of its results, and return the exit status."""
        asked = self.parse_options(arguments)
        try:
            if (self.plots or (asked.publish and self.report.draw)) and find_spec("matplotlib") is None:
                raise missing_package_error("matplotlib")
            found = self.run(asked)
            if self.plots:
                self.report.write_plots(found, asked.out)
            if asked.publish:
                self.report.publish(found)
        except RegardError as error:
            print(error, file=sys.stderr)
            return error.exit_code
        print(self.report.table(found))
        return 0


def _record(options: list[str] | dict[str, Any]) -> str | dict[str, Any]:
    """Options as results.json has them."""
    return options if isinstance(options, dict) else " ".join(options)


def model_folder(asked: argparse.Namespace, name: str) -> Path:
    """The folder of the model of a training."""
    folder: Path = asked.out / name.replace(", ", "-").replace(" ", "-")
    return folder


def option_list(**values: object) -> list[str]:
    """Options of a command, such as ``--most-tokens 96`` for ``most_tokens=96``; those that are None are left out."""
    given = {name.replace("_", "-"): value for name, value in values.items() if value is not None}
    return [part for name, value in given.items() for part in (f"--{name}", str(value))]


def set_options(values: Mapping[str, object] | Sequence[str]) -> list[str]:
    """``--set NAME=VALUE`` for each value of a mapping, or each text NAME=VALUE."""
    texts = [f"{name}={value}" for name, value in values.items()] if isinstance(values, Mapping) else values
    return [part for text in texts for part in ("--set", text)]


def train_and_evaluate(model: Path, options: Sequence[str], test: Sequence[str]) -> dict[str, Any]:
    """Train a classifier of texts or pictures by ``options``, then evaluate by ``test``, options with the test data.

    Returns accuracy, macro F1, calibration error, and what ``train_model`` measures.
    """
    measured = train_model(model, "classify", options)
    scores = run_for_json(["evaluate", "classify", "--model", str(model), *test, "--format", "json"], options)
    things = "pictures" if "pictures" in scores else "texts"
    names = (things, "accuracy", "baseline", "macro_f1", "loss", "calibration_error")
    return {**{name: scores[name] for name in names}, **measured}


def run_for_json(command: Sequence[str], options: Sequence[str]) -> Any:
    """What a command of regard prints, on the device of a training by ``options``. Exits with its code if it fails."""
    on_gpu = torch.cuda.is_available() and "--device" not in options
    full = [sys.executable, "-m", "regard", *command, *(["--device", "cuda"] if on_gpu else [])]
    done = subprocess.run(full, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)  # the command has said why
    return json.loads(done.stdout)


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
        **where(),
    }


def where() -> dict[str, Any]:
    """The machine and the versions of a measurement."""
    return {"machine": machine(), "versions": versions()}
