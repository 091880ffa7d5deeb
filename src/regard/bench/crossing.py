"""The length from which a mechanism is faster than exact attention, on the machine that measured both.

With the times t of the mechanism and e of exact attention, r = log(t / e) is interpolated in log(length) between the
last measured length at which the mechanism is slower, r_i >= 0, and the next one, r_(i+1) < 0:

    log(length) = log(n_i) + (log(n_(i+1)) - log(n_i)) r_i / (r_i - r_(i+1))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

from regard.arguments import explain_arguments
from regard.bench.timing import Timing
from regard.language import translate

Status: TypeAlias = Literal["from", "between", "shortest", "never", "unclear", "unmeasured"]


@final
@explain_arguments
@dataclass(frozen=True)
class Crossing:
    """From which length a mechanism is faster than exact attention.

    status   "from"        ``length``, interpolated between ``low`` and ``high``, which were measured
             "between"     ``low`` and ``high``: exact attention was stopped at the time limit at ``high``
             "shortest"    it is faster at every measured length, from ``high``
             "never"       it is slower at ``low``, the longest measured length
             "unclear"     at ``low``, the longest measured length, the quartiles of both times overlap
             "unmeasured"  there is no length at which both were measured
    """

    status: Status
    length: float | None = None
    low: int | None = None
    high: int | None = None

    def __str__(self) -> str:
        """Format the result for a table, in the language in use."""
        if self.status == "from":
            return translate("from {length}", length=f"{self.length:,.0f}")
        if self.status == "between":
            return translate("between {low} and {high}", low=f"{self.low:,}", high=f"{self.high:,}")
        if self.status == "shortest":
            return translate("from {length} or fewer", length=f"{self.high:,}")
        if self.status == "never":
            return translate("not up to {length}", length=f"{self.low:,}")
        if self.status == "unclear":
            return translate("unclear up to {length}", length=f"{self.low:,}")
        return translate("not measured")


@final
@dataclass(frozen=True)
class _Point:
    """A length, and the logarithm of the time relative to exact attention: infinite if one of them was stopped."""

    length: int
    log_ratio: float


def find_crossing(
    lengths: Sequence[int], times: Sequence[Timing | float | None], exact: Sequence[Timing | float | None]
) -> Crossing:
    """Find the length from which ``times`` stay below ``exact``; lengths ascend.

    A number in place of a time is a time limit at which the call was stopped; None is a case without a measurement.
    """
    points, last = [], None
    for length, mine, theirs in zip(lengths, times, exact, strict=True):
        if isinstance(mine, Timing) and isinstance(theirs, Timing):
            points.append(_Point(length, math.log(mine.median / theirs.median)))
            last = mine, theirs
        elif isinstance(mine, Timing) and isinstance(theirs, float):
            points.append(_Point(length, -math.inf))
            last = None
        elif isinstance(mine, float) and isinstance(theirs, Timing):
            points.append(_Point(length, math.inf))
            last = None
    if not points:
        return Crossing("unmeasured")
    if last is not None and last[0].low <= last[1].high and last[1].low <= last[0].high:
        return Crossing("unclear", low=points[-1].length)
    slower = [index for index, point in enumerate(points) if point.log_ratio >= 0]
    if not slower:
        return Crossing("shortest", high=points[0].length)
    if slower[-1] == len(points) - 1:
        return Crossing("never", low=points[-1].length)
    before, after = points[slower[-1]], points[slower[-1] + 1]
    if math.isinf(before.log_ratio) or math.isinf(after.log_ratio):
        return Crossing("between", low=before.length, high=after.length)
    part = before.log_ratio / (before.log_ratio - after.log_ratio)
    found = math.exp(math.log(before.length) + part * math.log(after.length / before.length))
    return Crossing("from", found, before.length, after.length)
