"""Batches by their numbers: an epoch is drawn once, and a batch knows which ones follow it, so that these are decoded
ahead.

Shares of the time since the last report: what training spends waiting for data, or changing it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar, final

import numpy as np

from regard.tasks.sentences import Indices


@final
class TimeFractions:
    """The shares of the time since the last report that each of ``names`` took."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._before = tuple(names), (0.0,) * len(names)
        self._since: float | None = None

    def begin(self) -> None:
        """Begin with the first step: what comes before is no training."""
        self._since = time.monotonic() if self._since is None else self._since

    def shares(self, seconds: Sequence[float]) -> dict[str, float]:
        """The shares since the last call, by name; ``seconds`` are the seconds of each, counted since the beginning."""
        now, before = time.monotonic(), self._before
        passed = max(now - (self._since or now), 1e-9)
        self._since, self._before = now, tuple(seconds)
        return {
            name: min(1.0, (one - earlier) / passed)
            for name, one, earlier in zip(self._names, seconds, before, strict=True)
        }


def start_threads() -> ThreadPoolExecutor:
    """Threads for decoding, one for each core and at least two."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return ThreadPoolExecutor(max(2, cores), thread_name_prefix="decode")


Batch = TypeVar("Batch")

_AHEAD = 3
"""Batches that are decoded ahead."""


@final
class EpochCache(Generic[Batch]):
    """The batches of the epoch that was asked for last: a loop asks for them again at each step."""

    def __init__(self) -> None:
        self._latest: tuple[int, list[Batch]] = (-1, [])

    def get_or_draw(self, number: int, draw: Callable[[int], list[Batch]]) -> list[Batch]:
        """Return the batches of epoch ``number``, which ``draw`` returns the first time."""
        if self._latest[0] != number:
            self._latest = number, draw(number)
        return self._latest[1]


@final
@dataclass(frozen=True, eq=False)
class NumberedBatch:
    """A batch before its files are read: its ``number`` in its ``epoch``, and indices of ``examples`` into a set."""

    epoch: int
    number: int
    examples: Indices

    def __len__(self) -> int:
        return len(self.examples)


def number_batches(epoch: int, batches: Iterable[Indices]) -> list[NumberedBatch]:
    """Number the batches of an epoch."""
    return [NumberedBatch(epoch, number, examples) for number, examples in enumerate(batches)]


def shuffled_batches(count: int, size: int, *, seed: int, epoch: int) -> list[NumberedBatch]:
    """Shuffle ``count`` examples by (seed, epoch), and cut them into batches of ``size``."""
    order = np.random.default_rng([seed, epoch]).permutation(count)
    return number_batches(epoch, (order[begin : begin + size] for begin in range(0, count, size)))


def batches_after(epoch: Sequence[NumberedBatch], batch: NumberedBatch) -> Sequence[NumberedBatch]:
    """The batches of an epoch to decode while ``batch`` is learned from."""
    return epoch[batch.number + 1 : batch.number + 1 + _AHEAD]
