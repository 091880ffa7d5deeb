"""How a run trains, whatever its task."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

from regard.errors import OptionError, check_choice, check_count, check_kind, check_number
from regard.layers.precision import PRECISIONS
from regard.train.schedule import Schedule

_LASTING_FIELDS = ("seed", "accumulate", "clip", "weight_decay", "precision", "average")


@final
@dataclass(frozen=True)
class Settings:
    """How to train.

    Args:
        seed: decides the order of batches, dropout and the first weights.
        schedule: the learning rate of each step.
        accumulate: batches whose gradients make one step.
        clip: the norm that a gradient is cut to; 0 is none.
        weight_decay: of AdamW, Loshchilov and Hutter 2019.
        precision: what products are computed in: "float32"; "bfloat16" (autocast: weights stay float32); or "auto", the
            one that is faster on this machine, which ``regard.train.run`` measures and says. A run that is resumed with
            "auto" keeps the one it was begun with.
        epochs: the most passes over the data; steps: the most steps; minutes: the most time, of all runs that
            continue one another. None is no bound.
        patience: validations without a better score after which training ends; 0 is never.
        validate_every: steps between validations; None is an epoch, but 200 to 2,000 steps.
        save_seconds: time between checkpoints, about.
        average: how many of the best validated weights are averaged at the end; 1 is none.
    """

    seed: int = 1
    schedule: Schedule = field(default_factory=Schedule)
    accumulate: int = 1
    clip: float = 1.0
    weight_decay: float = 0.0
    precision: str = "auto"
    epochs: int | None = None
    steps: int | None = None
    minutes: float | None = None
    patience: int = 10
    validate_every: int | None = None
    save_seconds: float = 120.0
    average: int = 5

    def __post_init__(self) -> None:
        check_choice("precision", self.precision, ("auto", *PRECISIONS))
        check_count("seed", self.seed, least=0)
        check_kind("schedule", self.schedule, Schedule, do="regard.train.schedule.Schedule(peak=...)")
        check_count("accumulate", self.accumulate)
        check_count("average", self.average)
        check_count("patience", self.patience, least=0)
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

    def lasting(self) -> dict[str, Any]:
        """By name, for JSON, what a resumed run must have in common with the run: all but bounds and intervals.

        The names are schedule, rate, warmup, steps (of a cosine), floor, seed, accumulate, clip, weight_decay,
        precision and average.
        """
        return {
            "schedule": self.schedule.name,
            "rate": self.schedule.peak,
            "warmup": self.schedule.warmup,
            "steps": self.schedule.steps,
            "floor": self.schedule.floor,
            **{name: getattr(self, name) for name in _LASTING_FIELDS},
        }
