"""Compare the running times of calls by interleaving them.

The calls take turns, so that other load on the machine affects all of them alike. To choose between calls, the shortest
time of each counts, since it was disturbed least (``least_seconds``). To report times, all are kept
(``sample_seconds``).
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence

_TURN_SECONDS = 0.005
"""Minimum seconds of a turn in ``sample_seconds``: short calls are repeated."""


def least_seconds(calls: Sequence[Callable[[], object]], *, tries: int) -> list[float]:
    """Run the calls in turn, ``tries`` times, and return the shortest time of each in seconds."""
    return [min(times) for times in zip(*([_time_call(call, 1) for call in calls] for _ in range(tries)), strict=True)]


def sample_seconds(
    calls: Mapping[str, Callable[[], object]], *, seconds: float, rounds: int
) -> dict[str, tuple[float, ...]]:
    """Run the calls in turn, and return the seconds of one call in each of its turns.

    A call has up to ``rounds`` turns, fewer if they would take more than ``seconds``, but at least one. A turn repeats
    a short call. Each call runs once or twice before its first turn, since first calls are slower.
    """
    repeats, turns = {}, {}
    for name, call in calls.items():
        took = _time_call(call, 1)
        if took < _TURN_SECONDS:
            took = _time_call(call, max(1, math.ceil(_TURN_SECONDS / 10 / max(took, 1e-9))))
        repeats[name] = max(1, math.ceil(_TURN_SECONDS / max(took, 1e-9)))
        turns[name] = max(1, min(rounds, int(seconds / (took * repeats[name]))))
    times: dict[str, list[float]] = {name: [] for name in calls}
    collecting, freezes = gc.isenabled(), gc.get_freeze_count() == 0
    gc.disable()
    if freezes:
        gc.freeze()  # collect what the turns leave behind, and not the objects of the whole program again and again
    try:
        for number in range(max(turns.values(), default=0)):
            present = [name for name in calls if number < turns[name]]
            for name in present if number % 2 == 0 else reversed(present):
                times[name].append(_time_call(calls[name], repeats[name]))
            gc.collect()
    finally:
        if freezes:
            gc.unfreeze()
        if collecting:
            gc.enable()
    return {name: tuple(values) for name, values in times.items()}


def _time_call(call: Callable[[], object], repeats: int) -> float:
    """Return the seconds of one call, as the mean of ``repeats`` calls."""
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - began) / repeats
