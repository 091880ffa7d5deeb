"""Targets of a case, and whether they were reached.

    Faster          time of a peer / regard's time              at least ``by``
    MaxTimeRatio    regard's time / time of another             at most ``times``
    MaxTimeOfParts  regard's time / time of another, a part of whose time is replaced by regard's: at most ``times``
    ShareOfPeak     regard's rate / the machine's peak          at least ``share``

Times are medians of interleaved repeats; the range of a ratio is the interquartile range of the ratios within rounds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from benchmarks.timing import Samples


@dataclass(frozen=True)
class Verdict:
    """The target and the measured value. ``kind`` is "faster", "no longer" or "share of peak"."""

    kind: str
    against: str
    asked: float
    got: float
    low: float
    high: float
    reached: bool


class Target(ABC):
    """A target of a case."""

    @abstractmethod
    def judge(
        self, ours: Samples, others: Mapping[str, Samples], peaks: Mapping[str, Samples], work: float
    ) -> Verdict | None:
        """Return the verdict; None if the other contestant did not run, or if there is no peak.

        ``peaks`` are rates per second, and ``work`` is the work of one call of regard, in the same unit.
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
        """Judge the other's median time divided by regard's."""
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
        """Judge regard's median time divided by the other's."""
        del peaks, work
        theirs = others.get(self.than)
        if theirs is None:
            return None
        got, pairs = ours.median / theirs.median, ours.ratio_to(theirs)
        return Verdict("no longer", self.than, self.times, got, pairs.low, pairs.high, got <= self.times)


@final
@dataclass(frozen=True)
class MaxTimeOfParts(Target):
    """At most ``times`` the time of the contestant ``than``, without its ``part``, and with ``replaced_by``."""

    than: str
    part: str
    replaced_by: str
    times: float

    def judge(
        self, ours: Samples, others: Mapping[str, Samples], peaks: Mapping[str, Samples], work: float
    ) -> Verdict | None:
        """Judge regard's median time divided by the expected time."""
        del peaks, work
        if not {self.than, self.part, self.replaced_by} <= others.keys():
            return None
        than, part, own = others[self.than], others[self.part], others[self.replaced_by]
        got = ours.median / (than.median - part.median + own.median)
        rounds = zip(ours.values, than.values, part.values, own.values, strict=True)
        ratios = Samples(tuple(mine / (whole - theirs + new) for mine, whole, theirs, new in rounds))
        label = f"{self.than} with regard's part"
        return Verdict("no longer", label, self.times, got, ratios.low, ratios.high, got <= self.times)


@final
@dataclass(frozen=True)
class ShareOfPeak(Target):
    """At least ``share`` of the first peak that the case's work is compared with."""

    share: float

    def judge(
        self, ours: Samples, others: Mapping[str, Samples], peaks: Mapping[str, Samples], work: float
    ) -> Verdict | None:
        """Judge work / median time / median peak."""
        del others
        if not peaks:
            return None
        name, peak = next(iter(peaks.items()))
        share = Samples(tuple(work / time / rate for time, rate in zip(ours.values, peak.values, strict=True)))
        got = work / ours.median / peak.median
        return Verdict("share of peak", name, self.share, got, share.low, share.high, got >= self.share)
