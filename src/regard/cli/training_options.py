"""Options of ``regard train`` that every task has, each declared once, and how they become a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.completion import choice_completer
from regard.cli.shared_options import PRECISIONS
from regard.cli.stderr import say
from regard.errors import OptionError

if TYPE_CHECKING:
    from regard.train import RunResult, Settings, Task

Out = Annotated[
    Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder to write the model to.", show_default=False)
]
Hyperparameters = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Override a model setting, for example layers=4, norm=pre or "
        "mechanism_options.projected=64; repeat for more.",
        show_default=False,
    ),
]
Accumulate = Annotated[int, typer.Option("--accumulate", min=1, help="Gradient accumulation: batches per step.")]
ScheduleName = Annotated[
    str,
    typer.Option(
        "--schedule",
        metavar="NAME",
        help="Learning rate schedule: inverse_sqrt, cosine or constant.",
        autocompletion=choice_completer(("inverse_sqrt", "cosine", "constant")),
    ),
]
Rate = Annotated[
    float | None,
    typer.Option("--rate", help="Peak learning rate. Default: chosen by the model size.", show_default=False),
]
Warmup = Annotated[
    int | None,
    typer.Option("--warmup", min=0, help="Warm-up steps. Default: chosen by the model size.", show_default=False),
]
Smoothing = Annotated[float, typer.Option("--smoothing", min=0.0, max=0.99, help="Label smoothing factor.")]
Clip = Annotated[float, typer.Option("--clip", min=0.0, help="Maximum gradient norm; 0 disables clipping.")]
WeightDecay = Annotated[float, typer.Option("--weight-decay", min=0.0, help="Weight decay of AdamW.")]
Precision = Annotated[
    str,
    typer.Option(
        "--dtype",
        metavar="DTYPE",
        help="Precision to compute in: float32, bfloat16, or auto (the faster one on this machine).",
        autocompletion=choice_completer((*PRECISIONS, "auto")),
    ),
]
Epochs = Annotated[int | None, typer.Option("--epochs", min=1, help="Maximum epochs.", show_default=False)]
Steps = Annotated[int | None, typer.Option("--steps", min=1, help="Maximum steps.", show_default=False)]
Minutes = Annotated[
    float | None, typer.Option("--minutes", min=0.0, help="Maximum training time, in minutes.", show_default=False)
]
ValidateEvery = Annotated[
    int | None,
    typer.Option(
        "--validate-every",
        min=1,
        help="Steps between validations. Default: one epoch, but at least 200 and at most 2,000.",
        show_default=False,
    ),
]
Average = Annotated[int, typer.Option("--average", min=1, help="Number of best checkpoints to average at the end.")]
SaveSeconds = Annotated[float, typer.Option("--save-seconds", min=0.0, help="Seconds between checkpoints.")]
TrainingDevice = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="cpu to train on the CPU. Default: a GPU if there is one.",
        show_default=False,
    ),
]
LoraRank = Annotated[
    int | None,
    typer.Option(
        "--lora",
        metavar="RANK",
        min=1,
        help="With --from: train low-rank adapters of this rank, which are added to the weights at the end, instead of "
        "all weights. Needs the extra lora.",
        show_default=False,
    ),
]
LoraAlpha = Annotated[
    float | None,
    typer.Option("--lora-alpha", help="Scale of the adapters. Default: twice the rank.", show_default=False),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Random seed of data order, dropout and initial weights.")]


def make_settings(
    *, schedule: str, rate: float | None, warmup: int | None, steps: int | None, **settings: Any
) -> Settings:
    """Make the settings of a run from the values of the options. Raises OptionError as ``Settings`` does."""
    from regard.train import Schedule, Settings

    made = Schedule(schedule, peak=rate, warmup=warmup, steps=steps if schedule == "cosine" else None)
    return Settings(schedule=made, steps=steps, **settings)


def run_task(
    task: Task, settings: Settings, out: Path, *, resume: bool, overwrite: bool, device: str | None
) -> RunResult:
    """Run the training; an interruption exits with code 130 and says how to resume."""
    from regard.train import run

    try:
        return run(task, settings, out, resume=resume, overwrite=overwrite, device=device)
    except KeyboardInterrupt as interruption:
        if not interruption.args:
            raise
        say(f"regard: {interruption}")
        sys.exit(130)


def parse_hyperparameters(assignments: list[str]) -> dict[str, Any]:
    """Parse the name=value of each --set; a value that is not JSON is a string."""
    hyperparameters: dict[str, Any] = {}
    for one in assignments:
        name, equals, value = one.partition("=")
        if not (name and equals and value):
            raise OptionError("wrong --set", expected="name=value", got=one, do="for example --set layers=4")
        try:
            hyperparameters[name] = json.loads(value)
        except ValueError:
            hyperparameters[name] = value
    return hyperparameters
