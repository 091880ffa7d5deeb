"""A sentence and its translation, what cannot be used as one, and the count of both."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias, final

from regard.text.breaks import BREAKS

_BREAKS = re.compile(f"[{BREAKS}]+")
_PLACES = 5


@final
@dataclass(frozen=True)
class Pair:
    """A sentence and its translation, each on one line; ``place`` says where they stand."""

    source: str
    target: str
    place: str


@final
@dataclass(frozen=True)
class LeftOut:
    """What is no pair: where it stands, and why, in words that are the same for all of its kind."""

    place: str
    reason: str


Found: TypeAlias = Pair | LeftOut


def paired(source: str, target: str, place: str) -> Found:
    """The pair, line breaks inside made spaces; left out where a side holds nothing."""
    source, target = (_BREAKS.sub(" ", text).strip() for text in (source, target))
    if source and target:
        return Pair(source, target, place)
    which = "both sides are" if not (source or target) else "the source is" if not source else "the target is"
    return LeftOut(place, f"{which} empty")


@final
@dataclass
class Tally:
    """How many pairs there were, and for each reason what was left out: how many, and the first places."""

    pairs: int = 0
    left_out: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)

    def count(self, found: Iterable[Found]) -> Iterator[Pair]:
        """The pairs, counted as they pass."""
        for one in found:
            if isinstance(one, Pair):
                self.pairs += 1
                yield one
            else:
                times, places = self.left_out.get(one.reason, (0, ()))
                self.left_out[one.reason] = times + 1, (*places, one.place)[:_PLACES]

    def sentences(self) -> list[str]:
        """One sentence for each reason, the commonest first."""
        ordered = sorted(self.left_out.items(), key=lambda item: -item[1][0])
        return [_sentence(reason, times, places) for reason, (times, places) in ordered]


def _sentence(reason: str, times: int, places: tuple[str, ...]) -> str:
    more = f" and {times - len(places):,} more" if times > len(places) else ""
    return f"left out {times:,}, where {reason}: {', '.join(places)}{more}"
