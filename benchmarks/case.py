"""The data classes of a benchmark: suite, case, contestant, and the work of one call.

suite        related cases, with a description and notes for readers
case         one problem of one size, with its targets
contestant   code that solves it: a call to time, and the deviations of its result from float64
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.accuracy import Deviation
from benchmarks.peaks import Peak
from benchmarks.targets import Target

OURS = "native"
"""The contestant to which the targets apply."""


@dataclass(frozen=True)
class Work:
    """Work of one call: ``amount`` operations, bytes or items; its rate in ``unit`` counts multiples of ``step``.

    ``peaks`` are the machine's peaks that the rate is compared with.
    """

    amount: float
    unit: str
    peaks: tuple[Peak, ...] = ()
    step: float = 1e9


@dataclass(frozen=True)
class Contestant:
    """Code that solves a case.

    ``run`` is the timed call. ``deviations`` compares its result with float64, and is called before any timing.
    ``before`` is called before each turn, and not timed.
    """

    run: Callable[[], object]
    deviations: Callable[[], Iterable[Deviation]]
    before: Callable[[], object] | None = None


@dataclass(frozen=True)
class PreparedCase:
    """A case in memory: its work, and a maker for each of its contestants."""

    work: Work
    contestants: Mapping[str, Callable[[], Contestant]]


@dataclass(frozen=True)
class Case:
    """One problem of one size.

    ``contestants`` run unless others are requested by name. ``line`` and ``length`` are the case's place in a plot of
    time against length, if the suite has one.
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
        """Whether every word is a word of the case's name."""
        return set(words) <= set(self.name.split())


LINEAR_SLOPE = 1.15
"""Largest slope of time or memory over length, in logarithms, that counts as linear for long texts."""


@dataclass(frozen=True)
class ScalingTarget:
    """Target that time or memory grows linearly with length, over the cases with these names, shortest first.

    ``what`` is "time" or "memory"; ``within`` is the factor by which it may grow faster than length, and ``slope``, in
    its place, the power of length with which it may grow. Only the first contestant is judged.
    """

    what: Literal["time", "memory"]
    cases: tuple[str, ...]
    contestants: tuple[str, ...] = (OURS,)
    within: float = 1.25
    slope: float | None = None

    def allowed_factor(self, lengths: Sequence[int]) -> float:
        """The factor by which it may grow faster than length, over these lengths."""
        return self.within if self.slope is None else (lengths[-1] / lengths[0]) ** (self.slope - 1)


@dataclass(frozen=True)
class Suite:
    """Related cases.

    ``description`` says what is measured, ``notes`` explain the results. ``untimed`` cases are only for ``scaling``.
    ``kernels`` are the C++ files that compute regard's results, beside those that they include; empty is all.
    """

    name: str
    title: str
    description: str
    cases: tuple[Case, ...]
    scaling: tuple[ScalingTarget, ...] = ()
    untimed: tuple[Case, ...] = ()
    notes: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()

    def case(self, name: str) -> Case:
        """Return the case of that name."""
        return next(case for case in (*self.cases, *self.untimed) if case.name == name)
