"""A picture and, over it in grey, the weights of one of its tokens over all patches, with the bar of their colours.

As on the page, colours begin at the uniform weight, which each key would have if all had the same. Keys outside of the
window of the token have none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float64

from regard.view.figures import colours
from regard.view.figures.figure import MARGIN, add_axes, new_drawing
from regard.view.figures.matrix import draw_bar
from regard.view.picture_reading import PictureLayer, PictureReading

_GAP, _BAR, _BAR_LABELS = 1.5, 2.4, 11.0
_INK_SHARE = 0.35
"""How dark the grey of the picture may make a shade."""
_WIDE = 1.6
"""The ratio of width to height from which the two stand one above the other, as for sounds."""


def patch_weights(layer: PictureLayer, head: int | None, token: int) -> Float64[np.ndarray, " tokens"]:
    """The weight of each token of the keys, for a query; NaN outside of its window. ``head`` None is the mean."""
    attention = layer.attention
    row = attention.mean_weights()[token] if head is None else attention.weights_of(head, [token])[0]
    keys = layer.keys[token]
    weights = np.full(layer.grid_of_keys.tokens, np.nan)
    weights[keys[keys >= 0]] = row[keys >= 0]
    return weights


def draw_picture(
    reading: PictureReading, layer: PictureLayer, weights: Float64[np.ndarray, " tokens"], token: int, width: float
) -> Any:
    """Draw the picture with the query outlined, and the weights over it, at most ``width`` millimetres wide."""
    from matplotlib.patches import Rectangle

    pixels = np.moveaxis(reading.pixels, 0, -1) / 255
    pixels = np.repeat(pixels, 3, axis=-1) if pixels.shape[-1] == 1 else pixels
    rows, columns = pixels.shape[:2]
    is_wide = columns > _WIDE * rows
    right = _GAP + _BAR + _BAR_LABELS
    side = width - right - 2 * MARGIN if is_wide else (width - right - _GAP - 2 * MARGIN) / 2
    height = side * rows / columns
    second = (MARGIN, height + _GAP) if is_wide else (MARGIN + side + _GAP, 0.0)
    drawing = new_drawing(second[0] + side + right + MARGIN, second[1] + height + 2 * MARGIN)
    shades, limits, colour_map = _shade(weights, layer, pixels)
    axes = None
    for (left, top), image in (((MARGIN, 0.0), pixels), (second, shades)):
        axes = add_axes(drawing, left, top + MARGIN, side, height)
        axes.imshow(image, extent=(0, side, height, 0), interpolation="nearest", aspect="auto")
        if token >= len(layer.grid.prefix) and layer.grid.rows:
            row, column = divmod(token - len(layer.grid.prefix), layer.grid.columns)
            cell_height, cell_width = (part * side / columns for part in layer.cell)
            place = (column * cell_width, row * cell_height)
            axes.add_patch(Rectangle(place, cell_width, cell_height, fill=False, edgecolor=colours.ACCENT, linewidth=1))
    bar = (second[0] + side + _GAP, second[1] + MARGIN), (_BAR, min(height, 40.0))
    draw_bar(drawing, *bar, colour_map, limits)
    return drawing


def _shade(
    weights: Float64[np.ndarray, " tokens"], layer: PictureLayer, pixels: Float64[np.ndarray, "height width 3"]
) -> tuple[Float64[np.ndarray, "height width 3"], tuple[float, float], Any]:
    """The colour of each pixel, the lowest and the largest weight of the scale, and its colours."""
    grid, cell = layer.grid_of_keys, layer.key_cell or layer.cell
    patches = weights[len(grid.prefix) :].reshape(grid.rows, grid.columns)
    largest = float(np.nanmax(np.abs(patches), initial=0.0)) or 1.0
    uniform = 1 / np.isfinite(weights).sum()
    is_signed = layer.attention.is_signed
    lowest = -largest if is_signed else uniform if largest > uniform else 0.0
    colour_map = colours.signed() if is_signed else colours.shares()
    places = np.clip((np.nan_to_num(patches, nan=lowest) - lowest) / (largest - lowest), 0, 1)
    at = (
        np.minimum((np.arange(size) / part).astype(int), count - 1)
        for size, part, count in zip(pixels.shape[:2], cell, patches.shape, strict=True)
    )
    grey = pixels.mean(axis=-1, keepdims=True)
    shades = colour_map(places[np.ix_(*at)])[..., :3] * (1 - _INK_SHARE * (1 - grey))
    return shades, (lowest, largest), colour_map
