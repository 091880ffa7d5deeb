"""Layers of a picture from recorded calls: how the tokens of each model lie over it, and the tokens of its windows."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.layers.window_partition import WindowPartition
from regard.models import ImageEncoder
from regard.models.media_encoder import TokenGrid
from regard.positions import Relative2d
from regard.recording import LayerCall
from regard.view.from_recording import check_number_of_weights, layers_of, to_float32
from regard.view.picture_reading import PictureLayer
from regard.view.window_reading import WindowReading


def make_picture_layers(
    model: ImageEncoder, calls: list[LayerCall], height: int, width: int
) -> tuple[PictureLayer, ...]:
    """Convert the calls of the layers of ``model`` for a picture of ``height`` x ``width`` pixels; of a Perceiver, the
    first one.

    Raises DataError for numbers that are not finite, and for too many weights in layers that have them alone.
    """
    grids, key_grids = model.token_grids(height, width), model.key_grids(height, width)
    if model.attends_through_latents:
        return (_make_latent_layer(calls[0], grids, (height, width)),)
    windows, cells = model.windows(height, width), model.token_cells(height, width)
    if windows:
        rows = zip(calls, grids, windows, cells, strict=True)
        return tuple(PictureLayer(grid, _join_windows(call, grid, one), cell, one) for call, grid, one, cell in rows)
    if key_grids != grids:
        check_number_of_weights([(call.query.shape[1], call.query.shape[2], call.key.shape[2]) for call in calls])
    return tuple(
        PictureLayer(grid, layer, cell)
        if keys == grid
        else PictureLayer(grid, layer, cell, key_grid=keys, key_cell=keys.cell(height, width))
        for grid, keys, layer, cell in zip(grids, key_grids, layers_of(calls), cells, strict=True)
    )


def _make_latent_layer(call: LayerCall, grids: tuple[TokenGrid, ...], size: tuple[int, int]) -> PictureLayer:
    """The cross-attention of a Perceiver: the others are between latents, which have no place in the picture."""
    pixels, latents, *_ = grids
    check_number_of_weights([(call.query.shape[1], latents.tokens, pixels.tokens)])
    (layer,) = layers_of([call])
    return PictureLayer(latents, layer, size, key_grid=pixels, key_cell=pixels.cell(*size))


def _join_windows(call: LayerCall, grid: TokenGrid, windows: WindowPartition) -> WindowReading:
    """The steps of all windows, whose queries, keys and values are (windows, heads, tokens, head_dim)."""
    cells, slots = windows.cells, windows.slots
    assert isinstance(call.bias, Relative2d), "the position of a Swin"
    allowed = None
    if call.mask is not None:
        of_window = call.mask.dense(windows.size**2, windows.size**2).expand(len(cells), 1, -1, -1)[:, 0].cpu()
        allowed = torch.empty(grid.tokens, windows.size**2, dtype=torch.bool)
        allowed[cells[cells >= 0]] = of_window[cells >= 0]

    def join(parts: Tensor, places: Tensor, count: int) -> Tensor:
        joined = parts.new_empty(count, *parts.shape[1::2])
        joined[places[places >= 0]] = parts.transpose(1, 2)[places >= 0]
        return to_float32(joined.transpose(0, 1))

    return WindowReading(
        name=call.name,
        query=join(call.query, cells, grid.tokens),
        key=join(call.key, slots, slots.numel()),
        value=join(call.value, slots, slots.numel()),
        scale=call.mechanism.scale,
        table=to_float32(call.bias.table_of(windows.size).flatten(0, 1).T),
        windows=windows,
        allowed=allowed,
    )
