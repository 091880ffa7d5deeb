"""How the learning rate goes with the steps.

    inverse_sqrt   peak * min(step / warmup, sqrt(warmup / step))                    Vaswani et al. 2017, section 5.3
    cosine         peak * step / warmup, then from the peak to ``floor`` * peak along half a cosine at ``steps``
                                                                          Loshchilov and Hutter 2017, equation 5
    constant       peak * min(step / warmup, 1)

Steps are counted from 1. The paper's width^-0.5 * warmup^-0.5 is a peak of 7e-4 for the base model. A ``peak`` or
``warmup`` of None is left to the task, which may know what suits the data; if it has none, they are 1e-3 and 1,000.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

from regard.errors import OptionError, check_choice, check_count, check_number

SCHEDULES = ("inverse_sqrt", "cosine", "constant")
_DEFAULT_PEAK, _DEFAULT_WARMUP = 1e-3, 1000


@final
@dataclass(frozen=True)
class Schedule:
    """The learning rate of each step, counted from 1.

    Args:
        name: one of ``SCHEDULES``.
        peak: the highest rate. warmup: steps up to it. None leaves them to the task.
        steps: the last step, needed by the cosine only. floor: the rate there, as a share of the peak.

    Raises OptionError for an unknown name, wrong numbers, and a cosine without an end after its warm-up.
    """

    name: str = "inverse_sqrt"
    peak: float | None = None
    warmup: int | None = None
    steps: int | None = None
    floor: float = 0.0

    def __post_init__(self) -> None:
        check_choice("schedule of the learning rate", self.name, SCHEDULES)
        if self.warmup is not None:
            check_count("warmup", self.warmup, least=0)
        if self.peak is not None:
            check_number("learning rate", self.peak, above=0.0)
        check_number("floor", self.floor, least=0.0)
        if self.steps is not None:
            check_count("steps", self.steps)
        if self.name == "cosine" and (self.steps is None or self.steps <= (self.warmup or 0)):
            raise OptionError(
                "a cosine has an end",
                expected="a number of steps"
                + ("" if self.warmup is None else f", more than the {self.warmup} of the warm-up"),
                got=str(self.steps),
                do="say how many steps there are to be, or take inverse_sqrt",
            )

    def complete(self, *, peak: float = _DEFAULT_PEAK, warmup: int = _DEFAULT_WARMUP) -> Schedule:
        """The schedule with these in place of what is None. Raises OptionError as the constructor does."""
        return replace(
            self,
            peak=peak if self.peak is None else self.peak,
            warmup=warmup if self.warmup is None else self.warmup,
        )

    def rate(self, step: int) -> float:
        """The learning rate of a step. Raises OptionError for what is no step."""
        check_count("step", step)
        peak = _DEFAULT_PEAK if self.peak is None else self.peak
        warmup = _DEFAULT_WARMUP if self.warmup is None else self.warmup
        if step < warmup:
            return peak * step / warmup
        if self.name == "inverse_sqrt":
            return peak * math.sqrt(max(warmup, 1) / step)
        if self.name == "constant" or self.steps is None:
            return peak
        done = min(1.0, (step - warmup) / max(1, self.steps - warmup))
        return peak * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done)))
