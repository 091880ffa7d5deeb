"""Learning rate schedules.

    inverse_sqrt   peak * min(step / warmup, sqrt(warmup / step))                    Vaswani et al. 2017, section 5.3
    cosine         peak * step / warmup, then half a cosine from the peak to ``floor`` * peak at ``steps``
                                                                          Loshchilov and Hutter 2017, equation 5
    constant       peak * min(step / warmup, 1)

A cosine without ``steps`` ends with the run, whatever its length is counted in (Li et al. 2020, "Budgeted training"):

    peak * min(step / warmup, 1) * (floor + (1 - floor) * (1 + cos(pi * done)) / 2)

where ``done`` is the part of the run's epochs or minutes that is over. Steps are counted from 1. The paper's width^-0.5
* warmup^-0.5 is a peak of 7e-4 for the base model. A ``peak`` or ``warmup`` of None is left to the task, which may have
values that suit the data; the defaults are 1e-3 and 1,000.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, final

from regard.arguments import explain_arguments
from regard.errors import OptionError, check_count, check_number
from regard.fields import check_fields, option_field
from regard.language import count_noun
from regard.log import log

_DEFAULT_PEAK, _DEFAULT_WARMUP = 1e-3, 1000
_WARMUP_SHARE = 10
"""A warm-up that is not given takes at most this part of a schedule with a number of steps."""


@final
@explain_arguments
@dataclass(frozen=True)
class Schedule:
    """The learning rate of each step, counted from 1.

    None leaves ``peak`` or ``warmup`` to the task.

    Raises OptionError for an unknown name, numbers out of range, and a cosine that does not end after its warm-up.
    """

    fields_are_options: ClassVar[bool] = True
    name: str = option_field(
        "inverse_sqrt",
        "Learning rate schedule: inverse_sqrt, constant, or cosine, which ends with `steps`, `epochs` or `minutes`.",
        choices=("inverse_sqrt", "cosine", "constant"),
        noun="learning rate schedule",
        option="--schedule",
    )
    peak: float | None = option_field(
        None, "Peak learning rate. Default: chosen by the model size.", above=0.0, option="--rate"
    )
    warmup: int | None = option_field(
        None,
        "Warm-up steps. Default: chosen by the model size, but at most a tenth of the run.",
        minimum=0,
        option="--warmup",
    )
    steps: int | None = option_field(
        None,
        "Last step of a cosine, which the other schedules ignore. Default: the end of the run.",
        minimum=1,
        option="",
    )
    floor: float = option_field(0.0, "Rate at the end of a cosine, as a fraction of the peak.", minimum=0.0, option="")

    def __post_init__(self) -> None:
        check_fields(self)
        if self.name == "cosine" and self.steps is not None and self.steps <= (self.warmup or 0):
            raise OptionError(
                "a cosine schedule ends after its warm-up",
                expected="a number of steps"
                + ("" if self.warmup is None else f", more than the {self.warmup} of the warm-up"),
                got=str(self.steps),
                do="set more steps, or use inverse_sqrt",
            )

    @property
    def ends_with_the_run(self) -> bool:
        """Whether the rate depends on the part of the run that is over."""
        return self.name == "cosine" and self.steps is None

    def ends_by(self, bound: str) -> bool:
        """Whether a run that ends by ``bound``, "steps", "epochs", "minutes" or "patience", cannot be continued."""
        return self.name == "cosine" and bound in ({"epochs", "minutes"} if self.steps is None else {"steps"})

    def complete(self, *, peak: float = _DEFAULT_PEAK, warmup: int = _DEFAULT_WARMUP) -> Schedule:
        """Fill in ``peak`` and ``warmup`` where they are None; a warm-up takes at most a tenth of ``steps``.

        Raises OptionError as the constructor does.
        """
        if self.steps is not None:  # a cosine, which ends after its warm-up
            warmup = min(warmup, self.steps // _WARMUP_SHARE)
        return replace(
            self,
            peak=peak if self.peak is None else self.peak,
            warmup=warmup if self.warmup is None else self.warmup,
        )

    def limit_warmup(self, steps: int | None) -> Schedule:
        """Limit the warm-up to a tenth of the ``steps`` of a run, and report it; None is an unknown number."""
        warmup = _DEFAULT_WARMUP if self.warmup is None else self.warmup
        limit = warmup if steps is None else max(1, steps // _WARMUP_SHARE)
        if warmup <= limit:
            return self
        log.info(f"a warm-up of {count_noun(limit, 'step')} in place of {warmup:,}: the run has {steps:,}")
        return replace(self, warmup=limit)

    def rate(self, step: int, done: float = 0.0) -> float:
        """The learning rate of a step, counted from 1.

        ``done``, from 0 to 1, is the part of the run before it, for a cosine that ends with the run. Raises OptionError
        unless ``step`` is a positive integer and ``done`` a number from 0 to 1.
        """
        check_count("step", step)
        check_number("done", done, minimum=0.0, maximum=1.0)
        peak = _DEFAULT_PEAK if self.peak is None else self.peak
        warmup = _DEFAULT_WARMUP if self.warmup is None else self.warmup
        warm = min(1.0, step / warmup) if warmup else 1.0
        if self.name == "inverse_sqrt" and step > warmup:
            return peak * math.sqrt(max(warmup, 1) / step)
        if self.name != "cosine":
            return peak * warm
        if self.steps is not None:
            done = min(1.0, max(0, step - warmup) / max(1, self.steps - warmup))
        return peak * warm * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done)))
