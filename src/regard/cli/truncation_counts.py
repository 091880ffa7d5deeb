"""The number of texts that were truncated at the model's limit, and the places of the first ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from regard.cli.stderr import say

_MAX_PLACES = 5


@final
@dataclass
class TruncationCounts:
    """Counts truncated texts in constant memory."""

    texts: int = 0
    places: tuple[str, ...] = ()

    def add(self, place: str) -> None:
        """Count a text that was truncated."""
        self.texts += 1
        self.places = (*self.places, place)[:_MAX_PLACES]

    def report(self) -> None:
        """Report the truncated texts to the user; nothing if there are none."""
        if self.texts:
            noun = "text" if self.texts == 1 else "texts"
            more = f" and {self.texts - len(self.places):,} more" if self.texts > len(self.places) else ""
            say(f"truncated at the model's limit: {self.texts:,} {noun}, {', '.join(self.places)}{more}")
