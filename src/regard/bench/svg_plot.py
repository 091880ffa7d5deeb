"""Lines on logarithmic axes as SVG, coloured by classes of the page's style, so that they suit light and dark pages."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

_COLOURS = 8
_DASHES = 4
_PLOT_WIDTH, _HEIGHT = 500, 400
_LEFT, _TOP, _BOTTOM = 70, 14, 46
_LABEL_DISTANCE, _LABEL_GAP = 14.0, 22
_MIN_LABEL_WIDTH, _CHARACTER_WIDTH = 168, 7.8
_LONGEST_LABEL = 48
"""Characters of a label; the titles of points have the whole name."""
_MIN_TICKS = 3


@final
@dataclass(frozen=True)
class Series:
    """A line: its name, its number (which chooses colour and dashes), and points (length, value) above 0."""

    name: str
    number: int
    points: tuple[tuple[int, float], ...]


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


def line_classes(number: int) -> str:
    """The classes of a line's colour and dashes in the page's style; 32 lines differ."""
    return f"c{number % _COLOURS} d{number // _COLOURS % _DASHES}"


def draw_lines(
    name: str, series: Sequence[Series], lengths: Sequence[int], format_value: Callable[[float], str]
) -> str:
    """Draw the lines over ``lengths``; ``name`` is read out for the plot. Returns an SVG element.

    Each point has a title with its name, length and value.
    """
    values = [value for one in series for _, value in one.points]
    ticks = _value_ticks(min(values), max(values))
    widest = 1.3 if len(lengths) == 1 else 1.0
    across = _Scale(
        lengths[0] / widest, max(lengths[-1] * widest, lengths[0] + 1.0), float(_LEFT), float(_LEFT + _PLOT_WIDTH)
    )
    upward = _Scale(
        min(ticks[0], min(values) / 1.1), max(ticks[-1], max(values) * 1.1), float(_HEIGHT - _BOTTOM), float(_TOP)
    )
    width = _LEFT + _PLOT_WIDTH + _LABEL_GAP + _label_width(series)
    parts = [f'<svg viewBox="0 0 {width} {_HEIGHT}" role="img" aria-label="{html.escape(name)}">']
    for tick in ticks:
        y = upward.place(tick)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_LEFT + _PLOT_WIDTH}"/>')
        parts.append(
            f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{format_value(tick)}</text>'
        )
    for length in lengths:
        x = across.place(length)
        parts.append(f'<path class="grid" d="M{x:.1f} {_HEIGHT - _BOTTOM}v5"/>')
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 20}" text-anchor="middle">{length:,}</text>'
        )
    middle = _LEFT + _PLOT_WIDTH / 2
    parts.append(f'<text class="tick" x="{middle:.0f}" y="{_HEIGHT - 6}" text-anchor="middle">tokens</text>')
    labels = _label_places([(upward.place(one.points[-1][1]), one) for one in series])
    parts += [_draw_series(one, across, upward, labels[one.number], format_value) for one in series]
    return "".join([*parts, "</svg>"])


def _draw_series(
    one: Series, across: _Scale, upward: _Scale, label_y: float, format_value: Callable[[float], str]
) -> str:
    places = [(across.place(length), upward.place(value)) for length, value in one.points]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    name = html.escape(one.name)
    points = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4">'
        f"<title>{name}, {length:,} tokens: {format_value(value)}</title></circle>"
        for (x, y), (length, value) in zip(places, one.points, strict=True)
    )
    end_x, end_y = places[-1]
    label_x = _LEFT + _PLOT_WIDTH + _LABEL_GAP
    return (
        f'<g class="series s{one.number} {line_classes(one.number)}"><path d="M{path}"/>{points}'
        f'<path class="leader" d="M{end_x + 6:.1f} {end_y:.1f}L{label_x - 4} {label_y:.1f}"/>'
        f'<text x="{label_x}" y="{label_y + 4:.1f}">{html.escape(_shorten(one.name))}</text></g>'
    )


def _shorten(name: str) -> str:
    return name if len(name) <= _LONGEST_LABEL else f"{name[: _LONGEST_LABEL - 1]}…"


def _label_width(series: Sequence[Series]) -> int:
    """The width of the longest label, so that none is cut off."""
    longest = max(len(_shorten(one.name)) for one in series)
    return max(_MIN_LABEL_WIDTH, math.ceil(_CHARACTER_WIDTH * longest))


def _label_places(ends: list[tuple[float, Series]]) -> dict[int, float]:
    """Place the names beside the ends of the lines, from the top down, without overlaps and inside the picture."""
    ends = sorted(ends, key=lambda end: end[0])
    places: list[float] = []
    for y, _ in ends:
        places.append(max(y, places[-1] + _LABEL_DISTANCE if places else _TOP))
    lowest = _HEIGHT - _LABEL_DISTANCE / 2
    for index in range(len(places) - 1, -1, -1):
        places[index] = min(places[index], lowest)
        lowest = places[index] - _LABEL_DISTANCE
    return {one.number: place for (_, one), place in zip(ends, places, strict=True)}


def _value_ticks(low: float, high: float) -> list[float]:
    """Choose round values from below ``low`` to above ``high``: powers of ten, or also 2 and 5 times these."""
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        inside = [tick for tick in ticks if low / 1.3 <= tick <= high * 1.3]
        if len(inside) >= _MIN_TICKS:
            return inside
    return [tick for tick in (low, high) if tick > 0]
