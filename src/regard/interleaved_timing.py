"""Compare the running times of calls by interleaving them.

The calls take turns, so that other load on the machine affects all of them alike; the shortest time of each counts,
since it was disturbed least.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence


def least_seconds(calls: Sequence[Callable[[], object]], *, tries: int) -> list[float]:
    """Run the calls in turn, ``tries`` times, and return the shortest time of each in seconds."""
    return [min(times) for times in zip(*([_time_call(call) for call in calls] for _ in range(tries)), strict=True)]


def _time_call(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
