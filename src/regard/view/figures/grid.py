"""All heads in small: a row of maps for each layer, with one scale from 0 to 100 %, by square roots.

Of a long text a cell is the largest absolute weight of a patch of the matrix, so that a single large weight stays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float64

from regard.view.figures import colours
from regard.view.figures.figure import LEAST_POINTS, add_axes, new_drawing
from regard.view.figures.matrix import draw_bar
from regard.view.reading import Reading

_MAX_CELLS = 48
_SPACE, _AXIS, _GAP = 0.7, 4.0, 1.2
_BAR, _BAR_LABELS = 2.0, 8.5


def draw_grid(reading: Reading, width: float) -> Any:
    """Draw the heads of all layers, at most ``width`` millimetres wide."""
    heads = max(layer.heads for layer in reading.layers)
    right = 2 * _GAP + _BAR + _BAR_LABELS
    side = min(16.0, (width - _AXIS - right) / heads)
    is_signed = any(layer.is_signed for layer in reading.layers)
    largest = max(1.0, *(float(abs(weights).max()) for layer in reading.layers for weights in layer.by_head()))
    colour_map = colours.signed() if is_signed else colours.shares()
    height = _AXIS + side * len(reading.layers)
    drawing = new_drawing(_AXIS + side * heads + right, height + _GAP)
    names = add_axes(drawing, 0, 0, _AXIS + side * heads, height)
    style = {"ha": "center", "va": "center", "size": LEAST_POINTS + 1, "color": colours.SOFT}
    for head in range(heads):
        names.text(_AXIS + (head + 0.5) * side, _AXIS / 2, str(head), **style)
    for number, layer in enumerate(reading.layers):
        names.text(_AXIS / 2, _AXIS + (number + 0.5) * side, str(number), **style)
        for head, weights in enumerate(layer.by_head()):
            axes = add_axes(drawing, _AXIS + head * side, _AXIS + number * side, side - _SPACE, side - _SPACE)
            place = np.sqrt(np.abs(weights) / largest) * np.sign(weights)
            shades = colour_map(_reduce(place) / 2 + 0.5 if is_signed else _reduce(place))[..., :3]
            extent = (0, side - _SPACE, side - _SPACE, 0)
            axes.imshow(shades, extent=extent, interpolation="nearest", aspect="auto")
    bar = (_AXIS + side * heads + 2 * _GAP, _AXIS), (_BAR, min(height - _AXIS - _SPACE, 40.0))
    draw_bar(drawing, *bar, colour_map, (-largest if is_signed else 0.0, largest), is_root=not is_signed)
    return drawing


def _reduce(places: Float64[np.ndarray, "queries keys"]) -> Float64[np.ndarray, "_ _"]:
    """The largest absolute number of each patch, in at most ``_MAX_CELLS`` rows and columns."""
    if max(places.shape) <= _MAX_CELLS:
        return places
    rows, columns = (
        np.unique(np.arange(size) * min(size, _MAX_CELLS) // size, return_index=True)[1] for size in places.shape
    )
    lowest, highest = (
        ufunc.reduceat(ufunc.reduceat(places, rows, axis=0), columns, axis=1) for ufunc in (np.minimum, np.maximum)
    )
    return np.asarray(np.where(-lowest > highest, lowest, highest))
