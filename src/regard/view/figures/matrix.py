"""The matrix of one head: a row for each query, a column for each key, and a bar with the colours of its weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from regard.view.figures import colours
from regard.view.figures.figure import LEAST_POINTS, MARGIN, POINTS, add_axes, new_drawing
from regard.view.figures.text_on_figures import POINT, measure, shorten
from regard.view.head_weights import HeadWeights

_LABEL_ROOM = 24.0
"""The most that a label takes, in millimetres; longer ones end with an ellipsis."""
_LARGEST_CELL = 9.0
_GAP, _BAR, _BAR_LABELS = 1.2, 2.4, 8.5
"""Between labels and cells; the width of the bar of colours; and of its labels."""
_ROOT_TICKS = (0.0, 0.01, 0.05, 0.2, 0.5, 1.0)
"""Weights that are labelled where shades are proportional to square roots."""
_MAX_DRAWN_CELLS = 2**13
"""Number of cells up to which each is a shape; of more, an image with a pixel for each."""


def draw_matrix(head: HeadWeights, width: float) -> Any:
    """Draw the matrix, at most ``width`` millimetres wide."""
    rows, columns = head.weights.shape
    left = max(measure(shorten(name, _LABEL_ROOM, POINTS), POINTS) for name in head.rows) + _GAP + MARGIN
    right = 3 * _GAP + _BAR + _BAR_LABELS
    cell = min(_LARGEST_CELL, max(0.05, (width - left - right) / columns))
    points = min(POINTS, max(LEAST_POINTS, cell * 0.85 / POINT))
    every = max(1, math.ceil(points * 1.05 * POINT / cell))
    names = [shorten(name, _LABEL_ROOM, points) for name in head.columns]
    top = max(measure(name, points) for name in names) + _GAP + MARGIN
    drawing = new_drawing(left + columns * cell + right, top + rows * cell + _GAP)
    axes = add_axes(drawing, left, top, columns * cell, rows * cell)
    colour_map, lowest = (colours.signed(), -head.largest) if head.is_signed else (colours.shares(), 0.0)
    _paint(axes, head, cell, colour_map, lowest)
    for place in range(0, rows, every):
        text = shorten(head.rows[place], _LABEL_ROOM, points)
        axes.text(-_GAP, (place + 0.5) * cell, text, ha="right", va="center", size=points)
    for place in range(0, columns, every):
        where = ((place + 0.5) * cell, -_GAP)
        axes.text(*where, names[place], ha="center", va="bottom", rotation=90, size=points)
    height = min(rows * cell, 40.0)
    draw_bar(drawing, (left + columns * cell + 3 * _GAP, top), (_BAR, height), colour_map, (lowest, head.largest))
    return drawing


def _paint(axes: Any, head: HeadWeights, cell: float, colour_map: Any, lowest: float) -> None:
    """Paint the cells; those of the token that is kept apart in greys from 0 to 1, with a gap beside them."""
    from matplotlib.patches import Rectangle

    rows, columns = head.weights.shape
    scale = (head.weights - lowest) / (head.largest - lowest)
    shades = colour_map(np.clip(scale, 0, 1))[..., :3]
    if head.sink is not None:
        shades[:, head.sink] = colours.apart()(np.clip(head.weights[:, head.sink], 0, 1))[..., :3]
    if rows * columns <= _MAX_DRAWN_CELLS:
        edges = np.arange(columns + 1) * cell, np.arange(rows + 1) * cell
        axes.pcolormesh(*edges, shades, edgecolors="face", linewidth=0.15)  # no white lines where shapes meet
    else:
        axes.imshow(shades, extent=(0, columns * cell, rows * cell, 0), interpolation="nearest", aspect="auto")
    if head.sink is not None and cell > 1:
        axes.plot([(head.sink + 1) * cell] * 2, [0, rows * cell], color="white", linewidth=1.2, solid_capstyle="butt")
    frame = Rectangle((0, 0), columns * cell, rows * cell, fill=False, edgecolor=colours.RULE, linewidth=0.4)
    axes.add_patch(frame).set_clip_on(False)


def draw_bar(
    drawing: Any,
    place: tuple[float, float],
    size: tuple[float, float],
    colour_map: Any,
    limits: tuple[float, float],
    *,
    is_root: bool = False,
) -> None:
    """Draw a bar with the colours from the lowest to the largest weight, labelled in percent.

    ``is_root`` says that shades are proportional to the square roots of weights.
    """
    (left, top), (width, height), (lowest, largest) = place, size, limits
    axes = add_axes(drawing, left, top, width, height)
    steps = np.linspace(1, 0, 256)[:, None]
    axes.imshow(colour_map(steps)[..., :3], extent=(0, width, height, 0), interpolation="nearest", aspect="auto")
    for weight in _ROOT_TICKS if is_root else _ticks(lowest, largest):
        share = math.sqrt(weight / largest) if is_root else (weight - lowest) / (largest - lowest)
        y, text = (1 - share) * height, f"{100 * weight:.10g}%".replace("-", "−")
        axes.plot([width, width + 0.6], [y, y], color=colours.SOFT, linewidth=0.4, clip_on=False)
        axes.text(width + 1, y, text, ha="left", va="center", size=LEAST_POINTS + 1, color=colours.SOFT)


def _ticks(lowest: float, largest: float) -> list[float]:
    """Round weights between these two."""
    from matplotlib.ticker import MaxNLocator

    return [float(weight) for weight in MaxNLocator(5).tick_values(lowest, largest) if lowest <= weight <= largest]
