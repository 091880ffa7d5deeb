"""The settings of a training run, which are the same for every task."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

from regard.arguments import explain_arguments
from regard.errors import OptionError, check_choice, check_count, check_flag, check_kind, check_number
from regard.layers.precision import PRECISIONS
from regard.train.schedule import Schedule

OPTIMIZERS = ("adamw", "muon")
_LASTING_FIELDS = ("seed", "optimizer", "accumulate", "clip", "weight_decay", "precision", "average")


@final
@explain_arguments
@dataclass(frozen=True)
class Settings:
    """The settings of a training run: optimizer, precision, bounds and intervals.

    Args:
        seed: random seed of the batch order, dropout and the initial weights.
        schedule: the learning rate of each step. A cosine without a number of steps ends with ``epochs`` or
            ``minutes``, whichever comes first; by minutes the rate follows the clock, so no two runs are the same.
        accumulate: gradient accumulation: batches in a step.
        clip: maximum gradient norm; 0 disables clipping.
        optimizer: "adamw", or "muon" for the matrices of blocks and AdamW for the other weights, which from scratch
            usually needs fewer steps: see ``optimizers``.
        weight_decay: decoupled weight decay, Loshchilov and Hutter 2019.
        precision: precision of matrix products: "float32"; "bfloat16" (autocast: weights stay float32); or "auto", the
            faster of the two on this machine, which ``regard.train.run`` measures and reports. A run resumed with
            "auto" keeps the precision it was started with.
        epochs: maximum passes over the data; steps: maximum steps; minutes: maximum training time, including that of
            the runs that are resumed. None is no bound.
        patience: early stopping: validations without a better score after which training ends; 0 disables it.
        validate_every: steps between validations; None is once per epoch, but every 200 to 2,000 steps.
        save_seconds: approximate seconds between checkpoints.
        checkpoint_activations: compute the activations of each block again in the backward pass instead of storing
            them, for less memory and a third more time; the result has the same bits, so a resumed run may
            differ in it.
        average: number of best validated weights to average at the end; 1 disables averaging.

    Raises OptionError for values out of range, for settings without any bound, and for a cosine without an end.
    """

    seed: int = 1
    schedule: Schedule = field(default_factory=Schedule)
    accumulate: int = 1
    clip: float = 1.0
    optimizer: str = "adamw"
    weight_decay: float = 0.0
    precision: str = "auto"
    epochs: int | None = None
    steps: int | None = None
    minutes: float | None = None
    patience: int = 10
    validate_every: int | None = None
    save_seconds: float = 120.0
    average: int = 5
    checkpoint_activations: bool = False

    def __post_init__(self) -> None:
        check_choice("precision", self.precision, ("auto", *PRECISIONS))
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_count("seed", self.seed, least=0)
        check_kind("schedule", self.schedule, Schedule, do="regard.train.schedule.Schedule(peak=...)")
        check_count("accumulate", self.accumulate)
        check_count("average", self.average)
        check_count("patience", self.patience, least=0)
        check_flag("checkpoint_activations", self.checkpoint_activations)
        for name in ("epochs", "steps", "validate_every"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        for name in ("clip", "weight_decay", "save_seconds"):
            check_number(name, getattr(self, name), least=0.0)
        if self.minutes is not None:
            check_number("minutes", self.minutes, above=0.0)
        if (self.epochs, self.steps, self.minutes) == (None, None, None) and self.patience == 0:
            raise OptionError(
                "this training would never end",
                expected="a bound: epochs, steps, minutes, or patience",
                got="none of them",
                do="set one of them",
            )
        if self.schedule.ends_with_the_run and (self.epochs, self.minutes) == (None, None):
            raise OptionError(
                "a cosine schedule needs its end",
                expected="the number of its steps, or epochs or minutes",
                got=f"steps={self.steps}, epochs=None, minutes=None",
                do="set one of them (--steps, --epochs, --minutes), or use inverse_sqrt",
            )

    def lasting(self) -> dict[str, Any]:
        """The settings that must be the same when a run is resumed, as JSON values: all but bounds and intervals.

        The names are steps (of a cosine), schedule, rate, warmup, floor, seed, optimizer, accumulate, clip,
        weight_decay, precision and average, and the epochs and minutes with which a cosine ends.
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
            **{name: getattr(self, name) for name in _LASTING_FIELDS},
        }
