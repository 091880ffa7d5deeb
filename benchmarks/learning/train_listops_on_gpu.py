"""``python -m benchmarks.learning.train_listops_on_gpu``: ListOps with many mechanisms at once, on one GPU.

A GPU is mostly idle while one model of 0.1 million weights trains, so all trainings run together, each as a process of
its own, for the same minutes: those of ``train_listops`` for mechanisms, and others that change one of its settings.
What they reach is the accuracy on the validation texts. NVIDIA's MPS (`nvidia-cuda-mps-control -d`) lets processes
share the GPU without waiting for one another.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning import train_listops
from benchmarks.learning.experiment import Experiment, Trainings, model_folder, where
from benchmarks.learning.listops import MAX_LENGTH
from benchmarks.learning.mechanisms import mechanism_options
from benchmarks.learning.report import Report, markdown_table, percent
from regard.train.run_folder import RunFolder

TRAININGS: dict[str, tuple[str, tuple[str, ...]]] = {
    **{
        name: (name, ())
        for name in (
            "luong_dot", "luong_general", "local_p", "forgetting", "differential", "retention", "mamba2",
            "nystromformer", "nsa", "dsa", "sigmoid", "top_k", "talking_heads", "additive", "luong_concat",
        )
    },
    "linear, rate 2e-3": ("linear", ("--rate", "0.002")),
    "kda, rate 2e-3": ("kda", ("--rate", "0.002")),
    "linear, learned positions": ("linear", ("--position", "learned")),
    "linear, first token": ("linear", ("--pooling", "cls")),
    "reformer, first token": ("reformer", ("--pooling", "cls")),
    "reformer, learned positions": ("reformer", ("--position", "learned")),
    "reformer, chunks of 64": ("reformer", ("--set", "mechanism_options.chunk=64")),
}  # fmt: skip
"""The mechanism and the changed options of each training, by its name in the table."""
_LEFT = 0.3
"""Accuracy of a model that has left the plateau of its first steps, where it answers with frequent labels."""


def _table(found: dict[str, Any]) -> str:
    """A table in Markdown, the best accuracy first."""
    rows = []
    for name, one in sorted(found.items(), key=lambda item: -_best_accuracy(item[1])):
        left = next((f"{at['step']:,}" for at in one["validations"] if at["accuracy"] > _LEFT), "")
        accuracy = percent(_best_accuracy(one)) if one["validations"] else ""
        rows.append(f"{name} | {accuracy} | {left} | {one['steps']:,}")
    return markdown_table("mechanism | accuracy | leaves the plateau | steps", rows)


def _best_accuracy(one: dict[str, Any]) -> float:
    return max((at["accuracy"] for at in one["validations"]), default=0.0)


_READING = """\
A model leaves the plateau when it finds the operator at the beginning among a thousand tokens. Linear attention does
with a fourfold learning rate, and neither with learned positions nor with the first token; Reformer does if the
classifier reads the first token. `local_p` attends to a window around a position that it predicts, and does not find
the beginning. Xiong et al. 2021, "Nystromformer", measure 19.1 % for Reformer and 18.8 % for Performer, and
37.2 % for Nystromformer. On this task a number near 18 % says that a training did not start, and not what a mechanism
can represent.
"""
REPORT = Report(
    "listops_gpu",
    """\
### ListOps: the others, and what keeps a model on the plateau

The same model and data for the mechanisms that the table lacks, and for `linear` and `reformer`, which stay there on
the plateau where a model answers with the most frequent labels, with one setting changed at a time: the learning rate,
the kind of positions, what the classifier reads (the first token and not the mean over all), the chunk of Reformer. All
of them train at once on one GPU for seven minutes, in plain torch, so the budget is cut: the steps are those that each
reached, of 5,000. The accuracy is the best one on the 2,000 validation texts, measured every 500 steps; *leaves the
plateau* is the step of the first one above 30 %.

```console
python -m benchmarks.learning.train_listops_on_gpu --data listops/ --publish
```
""",
    _table,
    lambda found: _READING,
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this experiment."""
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="train.tsv, valid.tsv")
    parser.add_argument("--training", action="append", choices=TRAININGS, help="repeat for more; default: all")
    parser.add_argument("--minutes", type=float, default=7.0, help="of each training, all at once")


def make_trainings(asked: argparse.Namespace) -> Trainings:
    """The chosen trainings, each with one setting of ``train_listops`` changed or none."""
    shared = ["--data", str(asked.data), "--dtype", "bfloat16", "--minutes", str(asked.minutes)]
    common = train_listops.training_options(train_listops.EXPERIMENT.parse_options(shared))
    trainings = {}
    for name in asked.training or TRAININGS:
        mechanism, changed = TRAININGS[name]
        trainings[name] = [*common, *mechanism_options(mechanism, MAX_LENGTH + 1, ()), *changed]
    return trainings


def run_together(asked: argparse.Namespace, trainings: Trainings) -> None:
    """Run all trainings at the same time, with their output in files of ``--out``. Exits if one fails."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # each has a core of its own at best
    running = {}
    for name, options in trainings.items():
        folder = model_folder(asked, name)
        command = [sys.executable, "-m", "regard", "train", "classify", "--out", str(folder), *options]
        with folder.with_name(f"{folder.name}.log").open("w", encoding="utf-8") as log:
            running[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    failed = [name for name, process in running.items() if process.wait()]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; see the .log files in {asked.out}")


def measure(asked: argparse.Namespace, model: Path, options: list[str]) -> dict[str, Any]:
    """The scores of all validations of a training, the steps and seconds that it took, and where."""
    run = RunFolder(model.with_name(f"{model.name}.run"))
    last = run.load_last()
    assert last is not None  # a run that ends writes a checkpoint
    lines = (run.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return {
        "validations": read_curve(lines),
        "steps": last.progress.step,
        "seconds": round(last.progress.seconds, 1),
        **where(),
    }


def read_curve(lines: Sequence[str]) -> list[dict[str, float]]:
    """Step, accuracy and loss of each validation, from the lines of metrics.jsonl."""
    records = (json.loads(line) for line in lines)
    return [
        {"step": one["step"], "accuracy": one["accuracy"], "loss": round(one["loss"], 4)}
        for one in records
        if one["kind"] == "validation"
    ]


EXPERIMENT = Experiment(
    "train_listops_on_gpu", __doc__, REPORT, add_options, make_trainings, measure, prepare=run_together
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
