"""``Timing``: the median time of a call, and its quartiles."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from regard.arguments import explain_arguments


@final
@explain_arguments
@dataclass(frozen=True)
class Timing:
    """Seconds of a call: the median over ``runs`` turns, and the lower and upper quartile."""

    median: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        """Summarise one time per turn."""
        if len(seconds) == 1:
            return cls(seconds[0], seconds[0], seconds[0], 1)
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(median, low, high, len(seconds))
