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

from benchmarks.learning import results
from benchmarks.learning.listops import MAX_LENGTH
from benchmarks.learning.mechanisms import mechanism_options
from benchmarks.learning.program import make_parser
from benchmarks.learning.report import LISTOPS_CURVES
from benchmarks.learning.train_listops import training_options
from benchmarks.machine import machine, versions
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


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser("train_listops_on_gpu", __doc__, "trained/listops-gpu")
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="train.tsv, valid.tsv")
    parser.add_argument("--training", action="append", choices=TRAININGS, help="repeat for more; default: all")
    parser.add_argument("--minutes", type=float, default=7.0, help="of each training, all at once")
    return parser.parse_args()


def main() -> int:
    """Run the trainings, write results.json and print the table."""
    asked = parse_options()
    asked.out.mkdir(parents=True, exist_ok=True)
    chosen = asked.training or list(TRAININGS)
    commands = {name: make_command(name, asked.data, asked.out, asked.minutes) for name in chosen}
    run_together(commands, asked.out)
    found = results.read(asked.out / "results.json")
    for name, command in commands.items():
        measured = measure(_model_folder(asked.out, name))
        found = results.add(asked.out / "results.json", name, {"options": options_of(command), **measured})
    if asked.publish:
        results.publish(LISTOPS_CURVES.path, found)
    print(LISTOPS_CURVES.table(found))
    return 0


def make_command(name: str, data: Path, out: Path, minutes: float) -> list[str]:
    """The command of one training."""
    mechanism, changed = TRAININGS[name]
    options = [
        *training_options(data, minutes=minutes, dtype="bfloat16"),
        *mechanism_options(mechanism, MAX_LENGTH + 1, ()),
    ]
    folder = str(_model_folder(out, name))
    return [sys.executable, "-m", "regard", "train", "classify", "--out", folder, *options, *changed]


def options_of(command: Sequence[str]) -> str:
    """What a command says about its training, behind the model's folder."""
    return " ".join(command[command.index("--data") :])


def run_together(commands: dict[str, list[str]], out: Path) -> None:
    """Run all commands at the same time, with their output in files of ``out``. Exits if one fails."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # each has a core of its own at best
    running = {}
    for name, command in commands.items():
        with (out / f"{_file_name(name)}.log").open("w", encoding="utf-8") as log:
            running[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    failed = [name for name, process in running.items() if process.wait()]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; see the .log files in {out}")


def measure(model: Path) -> dict[str, Any]:
    """The scores of all validations of a training, the steps and seconds that it took, and where."""
    run = RunFolder(model.with_name(f"{model.name}.run"))
    last = run.load_last()
    assert last is not None  # a run that ends writes a checkpoint
    lines = (run.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    curve = read_curve(lines)
    return {
        "validations": curve,
        "steps": last.progress.step,
        "seconds": round(last.progress.seconds, 1),
        "machine": machine(),
        "versions": versions(),
    }


def read_curve(lines: Sequence[str]) -> list[dict[str, float]]:
    """Step, accuracy and loss of each validation, from the lines of metrics.jsonl."""
    records = (json.loads(line) for line in lines)
    return [
        {"step": one["step"], "accuracy": one["accuracy"], "loss": round(one["loss"], 4)}
        for one in records
        if one["kind"] == "validation"
    ]


def _model_folder(out: Path, name: str) -> Path:
    return out / _file_name(name)


def _file_name(name: str) -> str:
    return name.replace(", ", "-").replace(" ", "-")


if __name__ == "__main__":
    sys.exit(main())
