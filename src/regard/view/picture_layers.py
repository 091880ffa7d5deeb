"""Layers of a picture from recorded calls: how the tokens of each model lie over it, and those of its windows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.layers.window_partition import WindowPartition
from regard.models import Cct, Cvt, ImageEncoder, PerceiverImageEncoder, Swin
from regard.models.image_encoder import TokenGrid
from regard.positions import Relative2d
from regard.recording import LayerCall
from regard.view.from_recording import check_number_of_weights, layers_of, to_numpy
from regard.view.picture_reading import Cell, PictureLayer
from regard.view.window_reading import WindowReading


def make_picture_layers(
    model: ImageEncoder, calls: list[LayerCall], height: int, width: int
) -> tuple[PictureLayer, ...]:
    """Convert the calls of the layers of ``model`` for a picture of ``height`` x ``width`` pixels; of a Perceiver, the
    first one.

    Raises DataError for numbers that are not finite, and for too many weights in layers that have them alone.
    """
    grids = model.token_grids(height, width)
    if isinstance(model, Swin):
        return _make_window_layers(model, calls, grids, model.windows(height, width))
    if isinstance(model, PerceiverImageEncoder):
        return (_make_latent_layer(calls[0], grids, (height, width)),)
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


def _make_latent_layer(call: LayerCall, grids: tuple[TokenGrid, ...], size: tuple[int, int]) -> PictureLayer:
    """The cross-attention of a Perceiver: the others are between latents, which have no place in the picture."""
    pixels, latents, *_ = grids
    check_number_of_weights([(call.query.shape[1], latents.tokens, pixels.tokens)])
    (layer,) = layers_of([call])
    return PictureLayer(latents, layer, size, key_grid=pixels, key_cell=_divide(pixels, size))


def _divide(grid: TokenGrid, size: tuple[int, int]) -> Cell:
    """The (height, width) in pixels of a token made by convolutions, whose neighbours share pixels: its part."""
    return size[0] / grid.rows, size[1] / grid.columns


def _make_window_layers(
    model: Swin, calls: list[LayerCall], grids: tuple[TokenGrid, ...], windows: tuple[WindowPartition, ...]
) -> tuple[PictureLayer, ...]:
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


def _join_windows(call: LayerCall, grid: TokenGrid, windows: WindowPartition) -> WindowReading:
    """The steps of all windows, whose queries, keys and values are (windows, heads, tokens, head_dim)."""
    cells, slots = windows.cells, windows.slots
    assert isinstance(call.bias, Relative2d), "the position of a Swin"
    allowed = None
    if call.mask is not None:
        of_window = call.mask.dense(windows.size**2, windows.size**2).expand(len(cells), 1, -1, -1)[:, 0].cpu()
        allowed = np.empty((grid.tokens, windows.size**2), dtype=np.bool_)
        allowed[cells[cells >= 0].numpy()] = of_window[cells >= 0].numpy()

    def join(parts: Tensor, places: Tensor, count: int) -> NDArray[Any]:
        joined = parts.new_empty(count, *parts.shape[1::2])
        joined[places[places >= 0]] = parts.transpose(1, 2)[places >= 0]
        return to_numpy(joined.transpose(0, 1))

    return WindowReading(
        name=call.name,
        query=join(call.query, cells, grid.tokens),
        key=join(call.key, slots, slots.numel()),
        value=join(call.value, slots, slots.numel()),
        scale=call.mechanism.scale,
        table=to_numpy(call.bias.table_of(windows.size).flatten(0, 1).T),
        windows=windows,
        allowed=allowed,
    )
