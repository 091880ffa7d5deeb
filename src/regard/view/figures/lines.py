"""Lines from queries on the left to keys on the right: stronger and thicker for larger weights; a colour for each head.

The form is that of Vig 2019, "A multiscale visualization of attention in the transformer model", figure 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from regard.errors import DataError, OptionError
from regard.view.figures import colours
from regard.view.figures.figure import MARGIN, POINTS, add_axes, new_drawing
from regard.view.figures.text_on_figures import measure, shorten, translate_on_figure
from regard.view.head_weights import HeadWeights

MAX_TOKENS = 200
_ROW = 3.3
"""Height of a token, in millimetres."""
_LABEL_ROOM, _GAP, _LEAST_BETWEEN = 26.0, 1.2, 10.0
_LEAST_SHARE = 0.05
"""The share of the largest weight below which no line is drawn."""


def draw_lines(heads: Sequence[HeadWeights], width: float, *, only_row: bool) -> Any:
    """Draw the lines of heads over the same tokens; ``only_row`` draws those of the chosen token alone."""
    _check(heads)
    first = heads[0]
    room = min(_LABEL_ROOM, (width - _LEAST_BETWEEN) / 2 - _GAP - MARGIN)
    rows, columns = ([shorten(name, room, POINTS) for name in names] for names in (first.rows, first.columns))
    left, right = (max(measure(name, POINTS) for name in names) + _GAP + MARGIN for names in (rows, columns))
    legend = _ROW * 1.5 if len(heads) > 1 else 0.0
    between = min(40.0, max(_LEAST_BETWEEN, width - left - right))
    height = _ROW * max(len(rows), len(columns))
    drawing = new_drawing(left + between + right, height + legend)
    axes = add_axes(drawing, left, 0, between, height)
    for at, name in enumerate(rows):
        is_chosen = only_row and at == first.row
        colour, weight = (colours.ACCENT, "bold") if is_chosen else (colours.INK, "normal")
        axes.text(-_GAP, (at + 0.5) * _ROW, name, ha="right", va="center", size=POINTS, color=colour, weight=weight)
    for at, name in enumerate(columns):
        axes.text(between + _GAP, (at + 0.5) * _ROW, name, ha="left", va="center", size=POINTS)
    for head, colour in zip(heads, colours.OF_HEADS, strict=False):
        _draw_head(axes, head, between, colour, only_row=only_row)
    if legend:
        _draw_legend(drawing, heads, left, height, between + right)
    return drawing


def _check(heads: Sequence[HeadWeights]) -> None:
    rows, columns = heads[0].weights.shape
    if max(rows, columns) > MAX_TOKENS:
        raise DataError(
            "the text is too long for a figure of lines", expected=f"at most {MAX_TOKENS} tokens",
            got=f"{max(rows, columns)}", do='draw its matrix: `kind="matrix"`',
        )  # fmt: skip
    if len(heads) > len(colours.OF_HEADS):
        raise OptionError(
            "there are too many heads for a figure of lines", expected=f"at most {len(colours.OF_HEADS)}",
            got=str(len(heads)), do='draw all in small: `kind="grid"`',
        )  # fmt: skip


def _draw_head(axes: Any, head: HeadWeights, between: float, colour: str, *, only_row: bool) -> None:
    """Draw the lines of a head, the strongest last; none to a token that is kept apart."""
    from matplotlib.collections import PathCollection
    from matplotlib.colors import to_rgba
    from matplotlib.path import Path

    weights = np.abs(head.weights) / head.largest
    if head.sink is not None:
        weights[:, head.sink] = 0
    if only_row:
        weights[np.arange(len(weights)) != head.row] = 0
    asks, gets = np.nonzero(weights >= _LEAST_SHARE)
    order = np.argsort(weights[asks, gets], kind="stable")
    asks, gets, shares = asks[order], gets[order], weights[asks, gets][order]
    ends = [(_ROW * (ask + 0.5), _ROW * (get + 0.5)) for ask, get in zip(asks, gets, strict=True)]
    curves = [
        Path([(0, start), (between / 2, start), (between / 2, end), (between, end)], [Path.MOVETO, *[Path.CURVE4] * 3])
        for start, end in ends
    ]
    shades = [
        to_rgba(colours.ACCENT if is_below else colour, 0.1 + 0.8 * share)
        for is_below, share in zip(head.weights[asks, gets] < 0, shares, strict=True)
    ]
    lines = PathCollection(curves, linewidths=0.3 + 1.5 * shares, edgecolors=shades, facecolors="none")
    axes.add_collection(lines, autolim=False)


def legend_texts(heads: Sequence[HeadWeights]) -> list[str]:
    """The title of the legend, and the names of the heads."""
    mean = translate_on_figure("mean")
    names = [mean if head.place.head is None else str(head.place.head) for head in heads]
    return [translate_on_figure("layer {layer}, head", layer=heads[0].place.layer), *names]


def _draw_legend(drawing: Any, heads: Sequence[HeadWeights], left: float, top: float, room: float) -> None:
    """Name the colours of the heads below the lines, at the left edge if there is no room beside it."""
    title, *names = legend_texts(heads)
    widths = [measure(title, POINTS) + 2 * _GAP, *(measure(name, POINTS) + 5.0 for name in names)]
    start = 0.0 if sum(widths) > room else left
    axes = add_axes(drawing, start, top, sum(widths), _ROW * 1.5)
    axes.text(0, _ROW, title, ha="left", va="center", size=POINTS, color=colours.SOFT)
    x = widths[0]
    for name, colour, width in zip(names, colours.OF_HEADS, widths[1:], strict=False):
        axes.plot([x, x + 2.5], [_ROW, _ROW], color=colour, linewidth=1.6, clip_on=False)
        axes.text(x + 3.2, _ROW, name, ha="left", va="center", size=POINTS, color=colours.SOFT)
        x += width
