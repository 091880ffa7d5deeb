"""The settings of a training run, which are the same for every task."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, final

from regard.arguments import explain_arguments
from regard.errors import OptionError
from regard.fields import check_fields, declare, declared_fields, option_field
from regard.number_formats import PRECISIONS
from regard.train.schedule import Schedule


@final
@explain_arguments
@dataclass(frozen=True)
class Settings:
    """The settings of a training run: optimizer, precision, bounds and intervals.

    A cosine without a number of steps ends with ``epochs`` or ``minutes``, whichever comes first; by minutes the rate
    follows the clock, so no two runs are the same. ``optimizer`` "muon" is described in ``optimizers``, the weight
    decay is decoupled (Loshchilov and Hutter 2019). ``precision`` is the precision of matrix products: with "bfloat16"
    weights stay float32 (autocast), and "auto" is measured and reported by ``regard.train.run``; a run resumed with it
    keeps the precision it was started with. ``minutes`` include the minutes of the runs that are resumed. Activations
    that are computed again have the same bits, so a resumed run may differ in it.

    Raises OptionError for values out of range, for settings without any bound, and for a cosine without an end.
    """

    fields_are_options: ClassVar[bool] = True
    accumulate: int = option_field(1, "Gradient accumulation: batches per step.", minimum=1)
    schedule: Schedule = field(
        default_factory=Schedule,
        metadata=declare("Learning rate of each step.", example="regard.train.schedule.Schedule(peak=...)"),
    )
    clip: float = option_field(1.0, "Maximum gradient norm; 0 disables clipping.", minimum=0.0)
    optimizer: str = option_field(
        "adamw",
        "adamw; or muon for the matrices of blocks, which from scratch usually needs fewer steps.",
        choices=("adamw", "muon"),
    )
    weight_decay: float = option_field(0.0, "Weight decay.", minimum=0.0)
    precision: str = option_field(
        "auto",
        "Precision to compute in: float32, bfloat16, or auto (the faster one on this machine).",
        choices=(*PRECISIONS, "auto"),
        option="--dtype",
        metavar="DTYPE",
    )
    epochs: int | None = option_field(None, "Maximum epochs.", minimum=1, is_saved=False)
    steps: int | None = option_field(None, "Maximum steps.", minimum=1, is_saved=False)
    minutes: float | None = option_field(None, "Maximum training time, in minutes.", above=0.0, is_saved=False)
    patience: int = option_field(
        10, "Early stopping: validations without a better score; 0 disables it.", minimum=0, is_saved=False
    )
    validate_every: int | None = option_field(
        None,
        "Steps between validations. Default: one epoch, but at least 200 and at most 2,000.",
        minimum=1,
        is_saved=False,
    )
    average: int = option_field(5, "Number of best checkpoints to average at the end.", minimum=1)
    checkpoint_activations: bool = option_field(
        False,
        "Compute activations again in the backward pass: the same result, less memory, a third more time.",
        is_saved=False,
    )
    watch: int = option_field(
        0,
        "Steps between measurements of the attention layers, for metrics.jsonl and TensorBoard; 0: none.",
        minimum=0,
        is_saved=False,
    )
    save_seconds: float = option_field(120.0, "Seconds between checkpoints.", minimum=0.0, is_saved=False)
    seed: int = option_field(1, "Random seed of data order, dropout and initial weights.", minimum=0)

    def __post_init__(self) -> None:
        check_fields(self)
        if (self.epochs, self.steps, self.minutes) == (None, None, None) and self.patience == 0:
            raise OptionError(
                "the training has no end",
                expected="a bound: epochs, steps, minutes, or patience",
                got="none of them",
                do="set one of them",
            )
        if self.schedule.ends_with_the_run and (self.epochs, self.minutes) == (None, None):
            raise OptionError(
                "a cosine schedule needs its end",
                expected="the number of its steps, or epochs or minutes",
                got=f"steps={self.steps}, epochs=None, minutes=None",
                do="set one of them (`steps=...`, `epochs=...`, `minutes=...`), or use inverse_sqrt",
            )

    def lasting(self) -> dict[str, Any]:
        """The settings that must be the same when a run is resumed, as JSON values: all but bounds and intervals.

        The names are steps (of a cosine), schedule, rate, warmup and floor, the epochs and minutes with which a cosine
        ends, and the names of the other fields.
        """
        ends = self.schedule.ends_with_the_run
        return {
            "steps": self.schedule.steps,  # first, since others may follow from it
            "schedule": self.schedule.name,
            "rate": self.schedule.peak,
            "warmup": self.schedule.warmup,
            "floor": self.schedule.floor,
            "cosine_epochs": self.epochs if ends else None,
            "cosine_minutes": self.minutes if ends else None,
            **{
                declared.name: getattr(self, declared.name)
                for declared in declared_fields(Settings)
                if declared.name != "schedule" and declared.facts.get("is_saved", True)
            },
        }
