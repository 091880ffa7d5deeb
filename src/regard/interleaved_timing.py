"""How long calls take beside one another.

They take turns, so that what else runs meets all of them; and of each the shortest try counts, which nothing disturbed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence


def least_seconds(calls: Sequence[Callable[[], object]], *, tries: int) -> list[float]:
    """The shortest time of each call."""
    return [min(times) for times in zip(*([_time_call(call) for call in calls] for _ in range(tries)), strict=True)]


def _time_call(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
