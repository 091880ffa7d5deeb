"""Lines on logarithmic axes as SVG, coloured by classes of the page's style, so that they suit light and dark pages.

A line of a plot, and the classes of its colour in the page's style.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from regard.language import translate, translate_count

_LEFT, _TOP, _BOTTOM = 70, 14, 46
_RIGHT = 22
"""Pixels at the right of the lines, where half of the last length needs some."""
_LABEL_DISTANCE, _LABEL_GAP = 14.0, 22
_MIN_LABEL_WIDTH, _CHARACTER_WIDTH = 168, 7.8
_LONGEST_LABEL = 48
"""Characters of a label; the titles of points have the whole name."""
_MIN_TICKS = 3


@final
@dataclass(frozen=True)
class _Shape:
    """The size of the area of the lines, the kind of screen it is for, and whether names are beside the lines."""

    kind: str
    width: int
    height: int
    has_names: bool


_WIDE = _Shape("wide", 500, 340, has_names=True)
_NARROW = _Shape("narrow", 280, 260, has_names=False)
"""For a telephone: the boxes above the plot say which line is which."""


@final
@dataclass(frozen=True)
class _Scale:
    """A logarithmic scale from values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        part = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + part * (self.end - self.start)


def draw_lines(
    name: str, series: Sequence[Series], lengths: Sequence[int], format_value: Callable[[float], str]
) -> str:
    """Draw the lines over ``lengths``, of which there are two or more; ``name`` is read out for the plot.

    Each point has a title with its name, length and value. Returns two SVG elements, of the classes "wide" and
    "narrow"; the page shows the one that fits the screen.
    """
    return "".join(_draw_plot(shape, name, series, lengths, format_value) for shape in (_WIDE, _NARROW))


def _draw_plot(
    shape: _Shape, name: str, series: Sequence[Series], lengths: Sequence[int], format_value: Callable[[float], str]
) -> str:
    values = [value for drawn in series for _, value in drawn.points]
    ticks = _value_ticks(min(values), max(values))
    right, bottom = float(_LEFT + shape.width), float(_TOP + shape.height)
    across = _Scale(float(lengths[0]), float(lengths[-1]), float(_LEFT), right)
    upward = _Scale(min(ticks[0], min(values) / 1.1), max(ticks[-1], max(values) * 1.1), bottom, float(_TOP))
    width = right + (_LABEL_GAP + _label_width(series) if shape.has_names else _RIGHT)
    parts = [
        f'<svg class="{shape.kind}" viewBox="0 0 {width:.0f} {bottom + _BOTTOM:.0f}" role="img" '
        f'aria-label="{html.escape(name)}">'
    ]
    for tick in ticks:
        y = upward.place(tick)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{right:.0f}"/>')
        parts.append(
            f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{format_value(tick)}</text>'
        )
    parts += [f'<path class="grid" d="M{across.place(length):.1f} {bottom:.0f}v5"/>' for length in lengths]
    parts += [
        f'<text class="tick" x="{x:.1f}" y="{bottom + 20:.0f}" text-anchor="middle">{text}</text>'
        for x, text in _length_labels(lengths, across)
    ]
    middle = _LEFT + shape.width / 2
    parts.append(
        f'<text class="tick" x="{middle:.0f}" y="{bottom + 40:.0f}" text-anchor="middle">{translate("tokens")}</text>'
    )
    names = _label_places([(upward.place(drawn.points[-1][1]), drawn) for drawn in series], bottom + _BOTTOM)
    for drawn in series:
        line, end = _draw_line(drawn, across, upward, format_value)
        parts.append(line + (_draw_name(drawn, end, right, names[drawn.number]) if shape.has_names else "") + "</g>")
    return "".join([*parts, "</svg>"])


def _length_labels(lengths: Sequence[int], across: _Scale) -> list[tuple[float, str]]:
    """The places and texts of as many lengths as fit beside each other, the last one first."""
    labels: list[tuple[float, str]] = []
    free = math.inf
    for length in reversed(lengths):
        x, text = across.place(length), f"{length:,}"
        half = _CHARACTER_WIDTH * len(text) / 2
        if x + half <= free:
            labels.append((x, text))
            free = x - half - _CHARACTER_WIDTH
    return labels


def _draw_line(
    drawn: Series, across: _Scale, upward: _Scale, format_value: Callable[[float], str]
) -> tuple[str, tuple[float, float]]:
    """The line with its points, in a group that is still open, and the place where it ends."""
    places = [(across.place(length), upward.place(value)) for length, value in drawn.points]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    points = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4">'
        f"<title>{html.escape(name_point(drawn.name, length, format_value(value)))}</title></circle>"
        for (x, y), (length, value) in zip(places, drawn.points, strict=True)
    )
    line = f'<g class="series s{drawn.number} {line_classes(drawn.number)}"><path d="M{path}"/>{points}'
    return line, places[-1]


def name_point(name: str, length: int, value: str) -> str:
    """The title of a point: the name of its line, its length and its value."""
    return translate("{name}, {tokens}: {value}", name=name, tokens=translate_count(length, "token"), value=value)


def _draw_name(drawn: Series, end: tuple[float, float], right: float, y: float) -> str:
    """The name of a line at the right, with a thin line to it from where the line ends."""
    x = right + _LABEL_GAP
    return (
        f'<path class="leader" d="M{end[0] + 6:.1f} {end[1]:.1f}L{x - 4:.0f} {y:.1f}"/>'
        f'<text x="{x:.0f}" y="{y + 4:.1f}">{html.escape(_shorten(drawn.name))}</text>'
    )


def _shorten(name: str) -> str:
    return name if len(name) <= _LONGEST_LABEL else f"{name[: _LONGEST_LABEL - 1]}…"


def _label_width(series: Sequence[Series]) -> int:
    """The width of the longest label, so that none is cut off."""
    longest = max(len(_shorten(line.name)) for line in series)
    return max(_MIN_LABEL_WIDTH, math.ceil(_CHARACTER_WIDTH * longest))


def _label_places(ends: list[tuple[float, Series]], height: float) -> dict[int, float]:
    """Place the names beside the ends of the lines, from the top down, without overlaps and inside the picture."""
    ends = sorted(ends, key=lambda end: end[0])
    places: list[float] = []
    for y, _ in ends:
        places.append(max(y, places[-1] + _LABEL_DISTANCE if places else _TOP))
    lowest = height - _LABEL_DISTANCE / 2
    for index in range(len(places) - 1, -1, -1):
        places[index] = min(places[index], lowest)
        lowest = places[index] - _LABEL_DISTANCE
    return {line.number: place for (_, line), place in zip(ends, places, strict=True)}


def _value_ticks(low: float, high: float) -> list[float]:
    """Choose round values from below ``low`` to above ``high``: powers of ten, or also 2 and 5 times these."""
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        inside = [tick for tick in ticks if low / 1.3 <= tick <= high * 1.3]
        if len(inside) >= _MIN_TICKS:
            return inside
    return [tick for tick in (low, high) if tick > 0]


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
