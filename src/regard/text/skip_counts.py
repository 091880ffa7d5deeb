"""Counts of skipped entries of data, by reason, for messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

_MAX_PLACES = 5


@final
@dataclass
class SkipCounts:
    """For each reason the number of skipped entries, and the places of the first ones."""

    skipped: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)

    def add(self, place: str, reason: str) -> None:
        """Count an entry that was skipped; its reason is worded the same for all entries of its kind."""
        times, places = self.skipped.get(reason, (0, ()))
        self.skipped[reason] = times + 1, (*places, place)[:_MAX_PLACES]

    def sentences(self) -> list[str]:
        """Format one message per reason for skipping, the most frequent first."""
        ordered = sorted(self.skipped.items(), key=lambda item: -item[1][0])
        return [_format_sentence(reason, times, places) for reason, (times, places) in ordered]


def _format_sentence(reason: str, times: int, places: tuple[str, ...]) -> str:
    more = f" and {times - len(places):,} more" if times > len(places) else ""
    return f"skipped {times:,} because {reason}: {', '.join(places)}{more}"
