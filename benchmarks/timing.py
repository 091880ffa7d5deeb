"""Time contestants in turns.

A machine's speed drifts: the load of other guests on the host varies, clocks change. So every round times each
contestant once and measures the peaks once, in an order that is reversed from round to round; compared values are
measured within the same seconds. Medians and interquartile ranges are reported.

A short call is repeated within its turn until it takes a few milliseconds, after one call that is not timed.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import final

TURN_SECONDS = 0.01
"""Minimum seconds of a turn: short calls are repeated."""
PAUSE_SECONDS = 0.01
"""Seconds of rest between turns, in which the spinning threads of the previous contestant go to sleep."""
MAX_ROUNDS = 41
MIN_ROUNDS = 3
MIN_SLOW_ROUNDS = 2
SLOW_ROUND_SECONDS = 20.0
"""Seconds from which a round counts as slow."""


@final
@dataclass(frozen=True)
class Samples:
    """One number per round."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """Lower quartile."""
        return self._quartile(0)

    @property
    def high(self) -> float:
        """Upper quartile."""
        return self._quartile(2)

    def ratio_to(self, other: Samples) -> Samples:
        """Return the ratio to the other samples in each round."""
        return Samples(tuple(mine / theirs for mine, theirs in zip(self.values, other.values, strict=True)))

    def _quartile(self, number: int) -> float:
        if len(self.values) == 1:
            return self.values[0]
        return statistics.quantiles(self.values, n=4, method="inclusive")[number]


def time_interleaved(
    calls: Mapping[str, Callable[[], object]],
    probes: Mapping[str, Callable[[], float]],
    *,
    seconds: float,
    pause: float = PAUSE_SECONDS,
    before: Mapping[str, Callable[[], object]] = MappingProxyType({}),
) -> tuple[dict[str, Samples], dict[str, Samples]]:
    """Return the seconds per call of each of ``calls``, and the results of ``probes``, in about ``seconds`` of rounds.

    ``pause`` is the rest before each turn: in some runtimes threads spin for a fifth of a second. ``before`` are calls
    of some contestants before their turns, which are not timed.
    """
    repeats: dict[str, int] = {}
    start = time.perf_counter()
    for name, call in calls.items():
        before.get(name, _do_nothing)()
        took = _time_call(call, 1)
        repeats[name] = max(1, math.ceil(TURN_SECONDS / took))
        if repeats[name] > 1:  # the very first call is slower than later calls
            repeats[name] = max(1, math.ceil(TURN_SECONDS / _time_call(call, repeats[name])))
    for probe in probes.values():
        probe()
    rounds = _choose_num_rounds(time.perf_counter() - start, seconds)
    times: dict[str, list[float]] = {name: [] for name in calls}
    rates: dict[str, list[float]] = {name: [] for name in probes}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for number in range(rounds):
            for name in list(calls) if number % 2 == 0 else reversed(list(calls)):
                before.get(name, _do_nothing)()
                times[name].append(_time_turn(calls[name], repeats[name], pause))
            for name, probe in probes.items():
                rates[name].append(probe())
            gc.collect()
    finally:
        if collecting:
            gc.enable()
    return _to_samples(times), _to_samples(rates)


def _do_nothing() -> None:
    """What most contestants do before a turn."""


def _choose_num_rounds(round_seconds: float, seconds: float) -> int:
    least = MIN_ROUNDS if round_seconds < SLOW_ROUND_SECONDS else MIN_SLOW_ROUNDS
    return min(MAX_ROUNDS, max(least, int(seconds / round_seconds)))


def _time_turn(call: Callable[[], object], repeats: int, pause: float) -> float:
    time.sleep(pause)
    if repeats > 1:
        call()
    return _time_call(call, repeats)


def _time_call(call: Callable[[], object], repeats: int) -> float:
    """Return the seconds of one call, as the mean of ``repeats`` calls."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def _to_samples(lists: Mapping[str, list[float]]) -> dict[str, Samples]:
    return {name: Samples(tuple(values)) for name, values in lists.items()}
