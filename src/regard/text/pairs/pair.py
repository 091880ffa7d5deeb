"""Sentence pairs, skipped entries, and their counts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias, final

from regard.text.line_separators import LINE_SEPARATORS
from regard.text.skip_counts import SkipCounts

_SEPARATOR_RUN = re.compile(f"[{LINE_SEPARATORS}]+")


@final
@dataclass(frozen=True)
class Pair:
    """A sentence and its translation, each without line breaks; ``place`` says where they were read, for messages."""

    source: str
    target: str
    place: str


@final
@dataclass(frozen=True)
class SkippedPair:
    """An entry that is not a usable pair: its place, and the reason, worded the same for all entries of its kind."""

    place: str
    reason: str


PairOrSkipped: TypeAlias = Pair | SkippedPair


def make_pair(source: str, target: str, place: str) -> PairOrSkipped:
    """Make a pair, with line breaks and tabs replaced by spaces; a ``SkippedPair`` if a side is empty."""
    source, target = (_SEPARATOR_RUN.sub(" ", text).strip() for text in (source, target))
    if source and target:
        return Pair(source, target, place)
    which = "both sides are" if not (source or target) else "the source is" if not source else "the target is"
    return SkippedPair(place, f"{which} empty")


@final
@dataclass
class PairCounts:
    """The number of pairs, and the skipped entries by reason."""

    pairs: int = 0
    skips: SkipCounts = field(default_factory=SkipCounts)

    @property
    def skipped(self) -> dict[str, tuple[int, tuple[str, ...]]]:
        """For each reason the number of skipped entries, and the places of the first ones."""
        return self.skips.skipped

    def count(self, found: Iterable[PairOrSkipped]) -> Iterator[Pair]:
        """Count pairs and skipped entries, and yield the pairs."""
        for one in found:
            if isinstance(one, Pair):
                self.pairs += 1
                yield one
            else:
                self.skips.add(one.place, one.reason)

    def sentences(self) -> list[str]:
        """Format one message per reason for skipping, the most frequent first."""
        return self.skips.sentences()
