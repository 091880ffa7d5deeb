"""How the learning rate goes with the steps.

    inverse_sqrt   peak * min(step / warmup, sqrt(warmup / step))                    Vaswani et al. 2017, section 5.3
    cosine         peak * step / warmup, then from the peak to ``floor`` * peak along half a cosine at ``steps``
                                                                          Loshchilov and Hutter 2017, equation 5
    constant       peak * min(step / warmup, 1)

Steps are counted from 1. The paper's width^-0.5 * warmup^-0.5 is a peak of 7e-4 for the base model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from regard.errors import OptionError, check_choice, check_count, check_number

SCHEDULES = ("inverse_sqrt", "cosine", "constant")


@final
@dataclass(frozen=True)
class Schedule:
    """``rate(step)`` for steps from 1. ``steps``, the last one, is needed by the cosine only."""

    name: str = "inverse_sqrt"
    peak: float = 1e-3
    warmup: int = 1000
    steps: int | None = None
    floor: float = 0.0

    def __post_init__(self) -> None:
        check_choice("schedule of the learning rate", self.name, SCHEDULES)
        check_count("warmup", self.warmup, least=0)
        check_number("learning rate", self.peak, above=0.0)
        check_number("floor", self.floor, least=0.0)
        if self.steps is not None:
            check_count("steps", self.steps)
        if self.name == "cosine" and (self.steps is None or self.steps <= self.warmup):
            raise OptionError(
                "a cosine has an end",
                expected=f"a number of steps, more than the {self.warmup} of the warm-up",
                got=str(self.steps),
                do="say how many steps there are to be, or take inverse_sqrt",
            )

    def rate(self, step: int) -> float:
        """The learning rate of a step. Raises OptionError for what is no step."""
        check_count("step", step)
        if step < self.warmup:
            return self.peak * step / self.warmup
        if self.name == "inverse_sqrt":
            return self.peak * math.sqrt(max(self.warmup, 1) / step)
        if self.name == "constant" or self.steps is None:
            return self.peak
        done = min(1.0, (step - self.warmup) / (self.steps - self.warmup))
        return self.peak * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done)))
