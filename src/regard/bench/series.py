"""A line of a plot, and the classes of its colour in the page's style."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

_COLOURS = 8
_DASHES = 4


@final
@dataclass(frozen=True)
class Series:
    """A line: its name, its number (which chooses colour and dashes), and points (length, value).

    Values are above 0 where axes are logarithmic.
    """

    name: str
    number: int
    points: tuple[tuple[int, float], ...]


def line_classes(number: int) -> str:
    """The classes of a line's colour and dashes in the page's style; 32 lines differ."""
    return f"c{number % _COLOURS} d{number // _COLOURS % _DASHES}"
