"""Entries of data that are skipped, and their counts by reason, for messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar, final

from regard.arguments import explain_arguments
from regard.errors import DataError
from regard.language import abbreviate_names
from regard.log import log

_MAX_PLACES = 5
Entry = TypeVar("Entry")


@final
@explain_arguments
@dataclass(frozen=True)
class Skipped:
    """An entry that cannot be used: its place, and the reason, worded the same for all entries of its kind."""

    place: str
    reason: str


@final
@dataclass
class SkipCounts:
    """The number of usable entries; and for each reason the number of skipped ones, and the places of the first."""

    usable: int = 0
    skipped: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)

    def add(self, place: str, reason: str) -> None:
        """Count an entry that was skipped; its reason is worded the same for all entries of its kind."""
        times, places = self.skipped.get(reason, (0, ()))
        self.skipped[reason] = times + 1, (*places, place)[:_MAX_PLACES]

    def count(self, found: Iterable[Entry | Skipped]) -> Iterator[Entry]:
        """Count entries, and yield the usable ones."""
        for entry in found:
            if isinstance(entry, Skipped):
                self.add(entry.place, entry.reason)
            else:
                self.usable += 1
                yield entry

    def sentences(self) -> list[str]:
        """Format one message per reason for skipping, the most frequent first."""
        ordered = sorted(self.skipped.items(), key=lambda item: -item[1][0])
        return [_format_sentence(reason, times, places) for reason, (times, places) in ordered]


def keep_usable(found: Iterable[Entry | Skipped], error: DataError) -> list[Entry]:
    """The usable entries; what was skipped is reported as notes. Raises ``error`` if there is none."""
    skips = SkipCounts()
    usable = list(skips.count(found))
    for sentence in skips.sentences():
        log.info(sentence)
    if not usable:
        raise error
    return usable


def _format_sentence(reason: str, times: int, places: tuple[str, ...]) -> str:
    return f"skipped {times:,} because {reason}: {abbreviate_names(places, len(places), count=times)}"
