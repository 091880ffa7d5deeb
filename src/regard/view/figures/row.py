"""One query of one head: its text as it is read, each token shaded by its weight, with the number below it."""

from __future__ import annotations

from typing import Any

from regard.view.figures import colours
from regard.view.figures.figure import LEAST_POINTS, MARGIN, add_axes, new_drawing
from regard.view.figures.text_on_figures import measure, shorten
from regard.view.head_weights import HeadWeights

_POINTS = 8.0
_BOX, _LINE, _PADDING, _GAP = 4.4, 8.4, 0.8, 0.6
"""Heights of a token and of a line, and the space within and between tokens, in millimetres."""
_LEAST_SHARE = 0.005
"""Weights below it have no number."""


def draw_row(head: HeadWeights, width: float, *, is_within: bool) -> Any:
    """Draw the tokens in lines of at most ``width`` millimetres; ``is_within`` says that the query is one of them."""
    from matplotlib.patches import FancyBboxPatch

    weights = head.weights[head.row]
    names = [shorten(name, width - 4, _POINTS) for name in head.columns]
    numbers = [_percent(weight) for weight in weights]
    sizes = [
        max(measure(name, _POINTS) + 2 * _PADDING, measure(number, LEAST_POINTS))
        for name, number in zip(names, numbers, strict=True)
    ]
    title = None if is_within else f"{head.rows[head.row]} →"
    top = 0.0 if title is None else _BOX
    places = _flow(sizes, width - 2 * MARGIN)
    used = max(x + size for (x, _), size in zip(places, sizes, strict=True))
    used = max(used, 0.0 if title is None else measure(title, _POINTS))
    height = top + (max(line for _, line in places) + 1) * _LINE
    drawing = new_drawing(used + 2 * MARGIN, height)
    axes = add_axes(drawing, MARGIN, 0, used, height)
    if title is not None:
        axes.text(0, _BOX / 2, title, ha="left", va="center", size=_POINTS, color=colours.ACCENT)
    for at, ((x, line), size) in enumerate(zip(places, sizes, strict=True)):
        y = top + line * _LINE + MARGIN
        shade = _shade(head, at)
        is_query = is_within and at == head.row
        box = FancyBboxPatch(
            (x + 0.4, y + 0.4), size - 0.8, _BOX - 0.8, boxstyle="round,pad=0.4,rounding_size=0.7", facecolor=shade,
            edgecolor=colours.ACCENT if is_query else "none", linewidth=0.9 if is_query else 0, clip_on=False,
        )  # fmt: skip
        axes.add_patch(box)
        middle = x + size / 2
        axes.text(middle, y + _BOX / 2, names[at], ha="center", va="center", size=_POINTS, color=colours.ink_on(shade))
        below = y + _BOX + 1.5
        axes.text(middle, below, numbers[at], ha="center", va="center", size=LEAST_POINTS, color=colours.SOFT)
    return drawing


def _flow(sizes: list[float], width: float) -> list[tuple[float, int]]:
    """The distance from the left, and the number of the line, of boxes of these widths."""
    places, x, line = [], 0.0, 0
    for size in sizes:
        if x and x + size > width:
            x, line = 0.0, line + 1
        places.append((x, line))
        x += size + _GAP
    return places


def _shade(head: HeadWeights, column: int) -> tuple[float, ...]:
    weight = float(head.weights[head.row, column])
    if column == head.sink:
        return tuple(colours.apart()(min(1.0, max(0.0, weight))))
    row = head.weights[head.row].copy()
    if head.sink is not None:
        row[head.sink] = 0
    share = weight / (float(abs(row).max()) or 1.0)
    return tuple(colours.signed()((share + 1) / 2) if head.is_signed else colours.shares()(max(0.0, share)))


def _percent(weight: float) -> str:
    return f"{100 * weight:.0f}%".replace("-", "−") if abs(weight) >= _LEAST_SHARE else ""
