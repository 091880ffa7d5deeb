"""Layers of a picture from recorded calls: how the tokens of each model lie over it, and those of its windows."""

from __future__ import annotations

import numpy as np

from regard.layers.window_partition import WindowPartition
from regard.models import Cct, Cvt, ImageEncoder, Swin
from regard.models.image_encoder import TokenGrid
from regard.recording import LayerCall
from regard.view.from_recording import check_number_of_weights, layers_of, to_numpy
from regard.view.layer_weights import LayerWeights
from regard.view.picture_reading import Cell, PictureLayer

WINDOWS_REASON = "The weights of a window are stored, and its scores have a bias by rows and columns."


def make_picture_layers(
    model: ImageEncoder, calls: list[LayerCall], height: int, width: int
) -> tuple[PictureLayer, ...]:
    """Convert the calls of the layers of ``model`` for a picture of ``height`` x ``width`` pixels.

    Raises DataError for numbers that are not finite, and for too many weights in layers that have them alone.
    """
    grids = model.token_grids(height, width)
    if isinstance(model, Swin):
        return _make_window_layers(model, calls, grids, model.windows(height, width))
    if isinstance(model, Cvt):
        return _make_key_grid_layers(calls, grids, model.key_grids(height, width), (height, width))
    cells = [_divide(grid, (height, width)) if isinstance(model, Cct) else model.config.patch_size for grid in grids]
    return tuple(map(PictureLayer, grids, layers_of(calls), cells))


def _make_key_grid_layers(
    calls: list[LayerCall],
    grids: tuple[TokenGrid, ...],
    key_grids: tuple[TokenGrid, ...],
    size: tuple[int, int],
) -> tuple[PictureLayer, ...]:
    """Layers whose keys have a grid of their own, unless it is that of the queries."""
    check_number_of_weights([(call.query.shape[1], call.query.shape[2], call.key.shape[2]) for call in calls])
    return tuple(
        PictureLayer(grid, layer, _divide(grid, size))
        if keys == grid
        else PictureLayer(grid, layer, _divide(grid, size), key_grid=keys, key_cell=_divide(keys, size))
        for grid, keys, layer in zip(grids, key_grids, layers_of(calls), strict=True)
    )


def _divide(grid: TokenGrid, size: tuple[int, int]) -> Cell:
    """The (height, width) in pixels of a token made by convolutions, whose neighbours share pixels: its part."""
    return size[0] / grid.rows, size[1] / grid.columns


def _make_window_layers(
    model: Swin, calls: list[LayerCall], grids: tuple[TokenGrid, ...], windows: tuple[WindowPartition, ...]
) -> tuple[PictureLayer, ...]:
    check_number_of_weights(
        [(call.query.shape[1], grid.tokens, call.key.shape[2]) for call, grid in zip(calls, grids, strict=True)]
    )
    return tuple(
        PictureLayer(grid, _join_windows(call, grid, one), cell, one)
        for call, grid, one, cell in zip(calls, grids, windows, _merged_cells(model, grids), strict=True)
    )


def _merged_cells(model: Swin, grids: tuple[TokenGrid, ...]) -> list[tuple[int, int]]:
    """The (height, width) in pixels of a token in each layer: a patch, and twice as much after each merging."""
    height, width = model.config.patch_size
    cells: list[tuple[int, int]] = []
    for before, grid in zip(grids[:1] + grids, grids, strict=False):
        if (grid.rows, grid.columns) != (before.rows, before.columns):
            height, width = 2 * height, 2 * width
        cells.append((height, width))
    return cells


def _join_windows(call: LayerCall, grid: TokenGrid, windows: WindowPartition) -> LayerWeights:
    """The weights of all windows (windows, heads, tokens, tokens) as rows of the map (heads, cells, window tokens)."""
    weights = to_numpy(call.weights())
    rows = np.empty((weights.shape[1], grid.tokens, weights.shape[3]), dtype=np.float32)
    for window, cells in zip(weights, windows.cells.numpy(), strict=True):
        rows[:, cells[cells >= 0]] = window[:, cells >= 0]
    return LayerWeights(call.name, rows, call.mechanism.weights_are, WINDOWS_REASON)
