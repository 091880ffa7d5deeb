"""Options of ``regard train`` that every task has, each declared once, and how they become a run."""

from __future__ import annotations

import sys
from abc import ABC
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.completion import choice_completer
from regard.cli.shared_options import PRECISIONS, Overwrite, Resume, check_resume
from regard.cli.stderr import say
from regard.errors import OptionError
from regard.option_spelling import spell_for_shell
from regard.parse_value import parse_value

if TYPE_CHECKING:
    from regard.train import RunResult, Task

Out = Annotated[
    Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder to write the model to.", show_default=False)
]


def setting_option(examples: str) -> Any:
    """The option ``--set``, with ``examples`` of settings that the default model of a task has."""
    return typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help=f"Override a model setting, for example {examples}; repeat for more.",
        show_default=False,
    )


Hyperparameters = Annotated[
    list[str] | None, setting_option("layers=4, norm=pre or mechanism_options.projected=64 (of linformer)")
]
Vocabulary = Annotated[
    int | None,
    typer.Option(
        "--vocabulary", min=1, help="Size of its vocabulary. Default: chosen by the data.", show_default=False
    ),
]
ScheduleName = Annotated[
    str,
    typer.Option(
        "--schedule",
        metavar="NAME",
        help="Learning rate schedule: inverse_sqrt, constant, or cosine, which ends with --steps, --epochs or "
        "--minutes.",
        autocompletion=choice_completer(("inverse_sqrt", "cosine", "constant")),
    ),
]
ScheduleBySteps = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        metavar="NAME",
        help="Learning rate schedule: inverse_sqrt, cosine or constant. Default: cosine with --steps, else "
        "inverse_sqrt.",
        show_default=False,
        autocompletion=choice_completer(("inverse_sqrt", "cosine", "constant")),
    ),
]
Smoothing = Annotated[float, typer.Option("--smoothing", min=0.0, max=0.99, help="Label smoothing factor.")]
WeightDecay = Annotated[float, typer.Option("--weight-decay", min=0.0, help="Weight decay.")]
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


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(ABC):
    """How a model is trained, whatever the task, in the order of the help.

    A field whose type is not ``Annotated`` is an option only for tasks that declare it again with one: their subclass
    says what differs, and the field keeps its place. Raises OptionError for ``--resume`` with ``--overwrite``.
    """

    accumulate: Annotated[int, typer.Option("--accumulate", min=1, help="Gradient accumulation: batches per step.")] = 1
    schedule: str | None
    rate: Annotated[
        float | None,
        typer.Option("--rate", help="Peak learning rate. Default: chosen by the model size.", show_default=False),
    ] = None
    warmup: Annotated[
        int | None,
        typer.Option(
            "--warmup",
            min=0,
            help="Warm-up steps. Default: chosen by the model size, but at most a tenth of the run.",
            show_default=False,
        ),
    ] = None
    smoothing: float = 0.0
    clip: Annotated[float, typer.Option("--clip", min=0.0, help="Maximum gradient norm; 0 disables clipping.")] = 1.0
    optimizer: Annotated[
        str,
        typer.Option(
            "--optimizer",
            metavar="NAME",
            help="adamw; or muon for the matrices of blocks, which from scratch usually needs fewer steps.",
            autocompletion=choice_completer(("adamw", "muon")),
        ),
    ] = "adamw"
    weight_decay: WeightDecay = 0.01
    lora: int | None = None
    lora_alpha: float | None = None
    precision: Annotated[
        str,
        typer.Option(
            "--dtype",
            metavar="DTYPE",
            help="Precision to compute in: float32, bfloat16, or auto (the faster one on this machine).",
            autocompletion=choice_completer((*PRECISIONS, "auto")),
        ),
    ] = "auto"
    epochs: Annotated[int | None, typer.Option("--epochs", min=1, help="Maximum epochs.", show_default=False)] = None
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Maximum steps.", show_default=False)] = None
    minutes: Annotated[
        float | None, typer.Option("--minutes", help="Maximum training time, in minutes.", show_default=False)
    ] = None
    patience: int = 10
    validate_every: Annotated[
        int | None,
        typer.Option(
            "--validate-every",
            min=1,
            help="Steps between validations. Default: one epoch, but at least 200 and at most 2,000.",
            show_default=False,
        ),
    ] = None
    average: Annotated[
        int, typer.Option("--average", min=1, help="Number of best checkpoints to average at the end.")
    ] = 5
    checkpoint_activations: Annotated[
        bool,
        typer.Option(
            "--checkpoint-activations",
            help="Compute activations again in the backward pass: the same result, less memory, a third more time.",
        ),
    ] = False
    save_seconds: Annotated[float, typer.Option("--save-seconds", min=0.0, help="Seconds between checkpoints.")] = 120.0
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="cpu to train on the CPU. Default: a GPU if there is one.",
            show_default=False,
        ),
    ] = None
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Random seed of data order, dropout and initial weights.")
    ] = 1
    resume: Resume = False
    overwrite: Overwrite = False

    def __post_init__(self) -> None:
        check_resume(resume=self.resume, overwrite=self.overwrite)

    def choose_schedule(self) -> str:
        """The schedule that was given, else a cosine if the number of steps is known."""
        return self.schedule or ("inverse_sqrt" if self.steps is None else "cosine")

    def run(self, task: Task, out: Path) -> RunResult:
        """Run the training; an interruption exits with code 130 and says how to resume.

        Raises OptionError as ``Settings`` does, and what ``regard.train.run`` raises.
        """
        from regard.train import Schedule, Settings, run
        from regard.train.reports import TerminalReport

        schedule = self.choose_schedule()
        steps = self.steps if schedule == "cosine" else None
        settings = Settings(
            seed=self.seed,
            schedule=Schedule(schedule, peak=self.rate, warmup=self.warmup, steps=steps),
            accumulate=self.accumulate,
            clip=self.clip,
            optimizer=self.optimizer,
            weight_decay=self.weight_decay,
            precision=self.precision,
            epochs=self.epochs,
            steps=self.steps,
            minutes=self.minutes,
            patience=self.patience,
            validate_every=self.validate_every,
            save_seconds=self.save_seconds,
            average=self.average,
            checkpoint_activations=self.checkpoint_activations,
        )
        try:
            return run(
                task,
                settings,
                out,
                resume=self.resume,
                overwrite=self.overwrite,
                device=self.device,
                report=TerminalReport(spell_for_shell),
            )
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
        hyperparameters[name] = parse_value(value)
    return hyperparameters
