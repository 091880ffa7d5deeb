"""What a benchmark is made of: a case, its contestants, the work that one call does.

family       cases that answer one question
case         one problem of one size, with what is promised for it
contestant   code that solves it: called to be timed, and asked how far its answer is from float64
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from benchmarks.accuracy import Deviation
from benchmarks.peaks import Peak
from benchmarks.targets import Target

OURS = "native"
"""The contestant that the targets are about."""


@dataclass(frozen=True)
class Work:
    """What one call does: ``amount`` operations, bytes or items; its rate in ``unit`` counts in steps of ``step``.

    ``peaks`` are the bounds of the machine that it is to be held against.
    """

    amount: float
    unit: str
    peaks: tuple[Peak, ...] = ()
    step: float = 1e9


@dataclass(frozen=True)
class Contestant:
    """Code that solves a case.

    ``run`` is what is timed. ``deviations`` compares its answer with float64, and is called before any timing.
    """

    run: Callable[[], object]
    deviations: Callable[[], Iterable[Deviation]]


@dataclass(frozen=True)
class PreparedCase:
    """A case in memory: its work, and how to make each contestant that there is for it."""

    work: Work
    contestants: Mapping[str, Callable[[], Contestant]]


@dataclass(frozen=True)
class Case:
    """One problem of one size.

    ``contestants`` take part unless others are asked for by name. ``line`` and ``length`` place the case in a plot of
    time against length, if it has one.
    """

    name: str
    sizes: str
    prepare: Callable[[], PreparedCase]
    contestants: tuple[str, ...]
    targets: tuple[Target, ...] = ()
    quick: bool = False
    line: str = ""
    length: int = 0

    def has_words(self, words: Iterable[str]) -> bool:
        """Whether every word is one of the name's words."""
        return set(words) <= set(self.name.split())


@dataclass(frozen=True)
class ScalingTarget:
    """Something that is to grow as length does, over the cases with these names, shortest first.

    ``what`` is "time" or "memory"; ``within`` is how much faster than length it may grow. Of the contestants only the
    first is judged.
    """

    what: Literal["time", "memory"]
    cases: tuple[str, ...]
    contestants: tuple[str, ...] = (OURS,)
    within: float = 1.25


@dataclass(frozen=True)
class Suite:
    """Cases that answer one question.

    ``untimed`` are cases of ``scaling`` alone. ``notes`` are sentences that a reader of the numbers needs.
    """

    name: str
    title: str
    question: str
    cases: tuple[Case, ...]
    scaling: tuple[ScalingTarget, ...] = ()
    untimed: tuple[Case, ...] = ()
    notes: tuple[str, ...] = ()

    def case(self, name: str) -> Case:
        """The case of that name."""
        return next(case for case in (*self.cases, *self.untimed) if case.name == name)
