"""What is promised of a case, and whether it was reached.

    Faster        time of a peer / our time                   at least so much
    NoLonger      our time / time of another                  at most so much
    ShareOfPeak   our rate / the machine's measured peak      at least so much

Times are medians of interleaved repeats; the range of a ratio is that of the middle half of the ratios within rounds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from benchmarks.timing import Samples


@dataclass(frozen=True)
class Verdict:
    """What was asked and what was got. ``kind`` is "faster", "no longer" or "share of peak"."""

    kind: str
    against: str
    asked: float
    got: float
    low: float
    high: float
    reached: bool


class Target(ABC):
    """Something promised of a case."""

    @abstractmethod
    def judge(
        self, ours: Samples, others: Mapping[str, Samples], peaks: Mapping[str, Samples], work: float
    ) -> Verdict | None:
        """The verdict; None where the other did not take part, or has no such peak.

        ``peaks`` are rates a second, and ``work`` is what one call of ours does, in the same steps.
        """


@final
@dataclass(frozen=True)
class Faster(Target):
    """At least ``by`` times as fast as the contestant ``than``."""

    than: str
    by: float

    def judge(
        self, ours: Samples, others: Mapping[str, Samples], peaks: Mapping[str, Samples], work: float
    ) -> Verdict | None:
        """Median of theirs over median of ours."""
        del peaks, work
        theirs = others.get(self.than)
        if theirs is None:
            return None
        got, pairs = theirs.median / ours.median, theirs.ratio_to(ours)
        return Verdict("faster", self.than, self.by, got, pairs.low, pairs.high, got >= self.by)


@final
@dataclass(frozen=True)
class MaxTimeRatio(Target):
    """At most ``times`` the time of the contestant ``than``."""

    than: str
    times: float

    def judge(
        self, ours: Samples, others: Mapping[str, Samples], peaks: Mapping[str, Samples], work: float
    ) -> Verdict | None:
        """Median of ours over median of theirs."""
        del peaks, work
        theirs = others.get(self.than)
        if theirs is None:
            return None
        got, pairs = ours.median / theirs.median, ours.ratio_to(theirs)
        return Verdict("no longer", self.than, self.times, got, pairs.low, pairs.high, got <= self.times)


@final
@dataclass(frozen=True)
class ShareOfPeak(Target):
    """At least ``share`` of the first of the peaks that the case's work is held against."""

    share: float

    def judge(
        self, ours: Samples, others: Mapping[str, Samples], peaks: Mapping[str, Samples], work: float
    ) -> Verdict | None:
        """Work over the median time, over the median peak."""
        del others
        if not peaks:
            return None
        name, peak = next(iter(peaks.items()))
        share = Samples(tuple(work / time / rate for time, rate in zip(ours.values, peak.values, strict=True)))
        got = work / ours.median / peak.median
        return Verdict("share of peak", name, self.share, got, share.low, share.high, got >= self.share)
