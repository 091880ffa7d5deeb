"""``python -m benchmarks.learning.train_recall``: recall of a token by its distance, with models of one size.

A GRU, a convolution, the scan family and dot-product attention learn the same sequences in the same skeleton
(``benchmarks.learning.recall``, ``recall_models``). Writes results.json and the plot, recall-light.svg and
recall-dark.svg, and prints a table. The same command resumes interrupted runs. ``--publish`` writes results and plot to
this repository too, where ``python -m benchmarks.translation.report`` reads them for docs/results.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.learning import recall_plot
from benchmarks.learning.experiment import Experiment, Trainings, where
from benchmarks.learning.recall import RecallProblem
from benchmarks.learning.recall_models import check_model, count_weights, default_models
from benchmarks.learning.recall_task import CHANCE, RecallTask
from benchmarks.learning.report import Report, markdown_table, percent
from regard.train import Schedule, Settings, run

_VALIDATIONS = 30
"""Validations of a model while it is trained: the points of its curve."""
_UNSHARED = ("out", "models", "device", "publish")
"""Options that do not change what is measured of a model."""


def _table(found: dict[str, Any]) -> str:
    """A table in Markdown: accuracy of each model in each octave of distances, its weights and processor time."""
    octaves = list(next(iter(found.values()))["octaves"])
    rows = []
    for name, one in found.items():
        shares = " | ".join(percent(one["octaves"][octave]) for octave in octaves)
        seconds = one["processor seconds"]
        minutes = "" if seconds is None else f"{seconds / 60:.1f}"
        rows.append(f"{name} | {shares} | {one['weights']:,} | {minutes}")
    rows.append(f"chance | {' | '.join([percent(CHANCE)] * len(octaves))} | |")
    return markdown_table(f"model | {' | '.join(octaves)} | weights | minutes", rows)


def _note(found: dict[str, Any]) -> str:
    one = next(iter(found.values()))
    options = one["options"]
    return (
        f"Accuracy by the distance between a value and its second key. {options['steps']:,} steps of "
        f"{options['batch']} sequences of {options['length']} tokens, one training for each row. *Minutes* are those "
        f"of one core, for the whole training, on {one['machine']['processor']}.\n"
    )


REPORT = Report(
    "recall",
    """\
## Recall by distance

How far back does a model find a token? A sequence holds pairs of a key and a value among noise. Each key comes a second
time, 2 to 255 tokens after its value, and the model has to answer with the value, one of 16: associative recall, with
every octave of distances (2-3, 4-7, ..) equally often. The nearest published task is multi-query associative recall
(Arora et al. 2024, "Zoology").

A GRU, a gated dilated convolution over 729 tokens, the [mechanisms](mechanisms.md#the-scan-family) with a state of
constant size, and dot-product attention with rotary positions are put into the same two blocks of width 64, with the
same number of weights (within 1 %), and are trained for the same number of steps on the same sequences with the same
learning rate. A short convolution before the first block joins each value to the key before it, for every model. One
command trains all models and draws the plot:

```console
pip install -e '.[train,bench]'
python -m benchmarks.learning.train_recall
```
""",
    _table,
    _note,
    plot="Accuracy by distance, and over all distances against the time of training, one line per model",
    draw=recall_plot.draw,
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this experiment."""
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


def make_trainings(asked: argparse.Namespace) -> Trainings:
    """One training for each model, all with the same options."""
    names = default_models() if asked.models is None else asked.models.split(",")
    for name in names:
        check_model(name)
    return dict.fromkeys(names, shared_options(asked))


def shared_options(asked: argparse.Namespace) -> dict[str, Any]:
    """The options that results must share to be compared."""
    return {name: value for name, value in vars(asked).items() if name not in _UNSHARED}


def measure(asked: argparse.Namespace, model: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Train a model, or resume its run, and measure its accuracy by distance.

    Time is that of the processor, over all threads: what training costs, whatever else runs beside it. It is unknown
    for a run that was interrupted.
    """
    from safetensors.torch import load_model

    problem = RecallProblem(asked.octaves, asked.length)
    task = RecallTask(problem, model.name, width=asked.width, heads=asked.heads, batch=asked.batch)
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
    run_folder = model.with_name(f"{model.name}.run")
    resume, began = (run_folder / "run.json").exists(), time.process_time()
    trained = run(task, settings, model, resume=resume, device=asked.device)
    processor_seconds = None if resume else time.process_time() - began
    load_model(task.model, model / "model.safetensors")
    octaves = task.accuracy_by_octave()
    return {
        "octaves": {octave: round(accuracy, 4) for octave, accuracy in octaves.items()},
        "accuracy": round(sum(octaves.values()) / len(octaves), 4),
        "weights": count_weights(task.model),
        "inner": task.model.inner,
        "steps": trained.steps,
        "processor seconds": None if processor_seconds is None else round(processor_seconds, 1),
        "curve": read_curve(run_folder / "metrics.jsonl"),
        **where(),
    }


def read_curve(metrics: Path) -> list[tuple[int, float]]:
    """The step and the accuracy at each validation, from the metrics of a run."""
    lines = map(json.loads, metrics.read_text(encoding="utf-8").splitlines())
    found = {one["step"]: one["accuracy"] for one in lines if one["kind"] == "validation"}
    return [(step, round(accuracy, 4)) for step, accuracy in found.items()]


def choose_comparable(asked: argparse.Namespace, found: dict[str, Any]) -> dict[str, Any]:
    """The results with these options."""
    return {name: one for name, one in found.items() if one["options"] == shared_options(asked)}


EXPERIMENT = Experiment(
    "train_recall",
    __doc__,
    REPORT,
    add_options,
    make_trainings,
    measure,
    shared=("seed", "minutes", "device"),
    choose=choose_comparable,
    plots=True,
)


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
