"""Sentence pairs, skipped entries, and their counts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias, final

from regard.text.line_separators import LINE_SEPARATORS

_SEPARATOR_RUN = re.compile(f"[{LINE_SEPARATORS}]+")
_MAX_PLACES = 5


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
    """Number of pairs, and for each reason the number of skipped entries and the places of the first ones."""

    pairs: int = 0
    skipped: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)

    def count(self, found: Iterable[PairOrSkipped]) -> Iterator[Pair]:
        """Count pairs and skipped entries, and yield the pairs."""
        for one in found:
            if isinstance(one, Pair):
                self.pairs += 1
                yield one
            else:
                times, places = self.skipped.get(one.reason, (0, ()))
                self.skipped[one.reason] = times + 1, (*places, one.place)[:_MAX_PLACES]

    def sentences(self) -> list[str]:
        """Format one message per reason for skipping, the most frequent first."""
        ordered = sorted(self.skipped.items(), key=lambda item: -item[1][0])
        return [_format_sentence(reason, times, places) for reason, (times, places) in ordered]


def _format_sentence(reason: str, times: int, places: tuple[str, ...]) -> str:
    more = f" and {times - len(places):,} more" if times > len(places) else ""
    return f"left out {times:,}, where {reason}: {', '.join(places)}{more}"
