"""Batches by their numbers: an epoch is drawn once, and a batch knows which ones follow it, so that these are decoded
ahead.

    of similar length    shuffle the examples, cut them into pools of 50 batches, sort each pool by length (ties stay
                         shuffled), cut it into batches, and shuffle all batches

Little of a batch is padding, and still the examples of a batch are different ones in each epoch. The order depends on
(seed, epoch) alone, so an interrupted run resumes with exactly the next batch.

Shares of the time since the last report: what training spends waiting for data, or changing it.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar, final

import numpy as np

from regard.tasks.sentences import Indices
from regard.text.length_batches import cut_batches


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
        present, before = time.monotonic(), self._before
        passed = max(present - (self._since or present), 1e-9)
        self._since, self._before = present, tuple(seconds)
        return {
            name: min(1.0, (later - earlier) / passed)
            for name, later, earlier in zip(self._names, seconds, before, strict=True)
        }


def start_threads() -> ThreadPoolExecutor:
    """Threads for decoding, one for each core and at least two."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return ThreadPoolExecutor(max(2, cores), thread_name_prefix="decode")


Batch = TypeVar("Batch")

_AHEAD = 3
"""Batches that are decoded ahead."""


class Epochs(ABC, Generic[Batch]):
    """Batches of ``size`` examples, in an order that depends on the ``seed`` and the epoch."""

    def __init__(self, *, size: int, seed: int) -> None:
        self.size, self.seed = size, seed
        self._latest: tuple[int, list[Batch]] = (-1, [])

    def epoch(self, number: int) -> list[Batch]:
        """The batches of epoch ``number`` (from 0), in order; kept, since a loop asks for them again at each step."""
        if self._latest[0] != number:
            self._latest = number, self.draw_batches(number)
        return self._latest[1]

    @abstractmethod
    def draw_batches(self, number: int) -> list[Batch]:
        """Draw the batches of epoch ``number``, by the seed and the number alone."""


@final
@dataclass(frozen=True, eq=False)
class NumberedBatch:
    """A batch before its files are read: its ``number`` in its ``epoch``, and indices of ``examples`` into a set."""

    epoch: int
    number: int
    examples: Indices

    def __len__(self) -> int:
        return len(self.examples)


def batches_after(epoch: Sequence[NumberedBatch], batch: NumberedBatch) -> Sequence[NumberedBatch]:
    """The batches of an epoch to decode while ``batch`` is learned from."""
    return epoch[batch.number + 1 : batch.number + 1 + _AHEAD]


class Batches(Epochs[NumberedBatch], ABC):
    """Batches of a set of examples, each of which occurs once in an epoch."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of examples."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """SHA-256 of all examples, in order, by which a resumed run recognises its data."""

    def draw_batches(self, number: int) -> list[NumberedBatch]:
        """The batches of an epoch, numbered."""
        return [NumberedBatch(number, place, examples) for place, examples in enumerate(self.draw_epoch(number))]

    def draw_epoch(self, number: int) -> list[Indices]:
        """The indices of the examples in each batch of an epoch: all examples, shuffled."""
        order = np.random.default_rng([self.seed, number]).permutation(len(self))
        return [order[begin : begin + self.size] for begin in range(0, len(self), self.size)]

    def cut_for_validation(self, size: int) -> list[Indices]:
        """Every example once, in batches of ``size``."""
        return [np.arange(at, min(at + size, len(self))) for at in range(0, len(self), size)]


_POOL_BATCHES = 50
_NO_LIMIT = 2**62


class BatchesByLength(Batches, ABC):
    """Batches of examples of similar length, with at most ``tokens`` tokens, padding included (None: no limit)."""

    tokens: int | None = None

    @property
    @abstractmethod
    def lengths(self) -> Indices:
        """The length of each example, (examples,)."""

    def draw_epoch(self, number: int) -> list[Indices]:
        """The indices of the examples in each batch of an epoch."""
        generator = np.random.default_rng([self.seed, number])
        shuffled, batches = generator.permutation(len(self)), list[Indices]()
        for begin in range(0, len(shuffled), self.size * _POOL_BATCHES):
            pool = shuffled[begin : begin + self.size * _POOL_BATCHES]
            batches += self._cut(pool[np.argsort(self.lengths[pool], kind="stable")], self.size)
        return [batches[index] for index in generator.permutation(len(batches)).tolist()]

    def cut_for_validation(self, size: int) -> list[Indices]:
        """Every example once, in batches of at most ``size``, the longest first."""
        return self._cut(np.argsort(-self.lengths, kind="stable"), size)

    def _cut(self, ordered: Indices, size: int) -> list[Indices]:
        """Cut examples, in that order, into batches; one that is too long by itself is a batch of its own."""
        tokens = _NO_LIMIT if self.tokens is None else self.tokens
        return [ordered[batch] for batch in cut_batches(self.lengths[ordered].tolist(), tokens=tokens, size=size)]
