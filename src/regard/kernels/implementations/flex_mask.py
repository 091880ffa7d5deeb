"""A mask in the form of FlexAttention, made of its tile map once for each device.

Empty tiles are skipped and full ones are not tested; in partial ones FlexAttention evaluates the mask's rule. Keys that
are hidden from every query are listed too, since a weight of 0 times NaN is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from regard.copy_to_device import copy_to
from regard.kernels.request import Request
from regard.masks.base import Mask
from regard.masks.tiles import FULL, PARTIAL, TileMap

BLOCK_SIZE = 128


@final
@dataclass(frozen=True)
class FlexMask:
    """The block mask, and which keys are hidden from all queries that share them; None if none is."""

    blocks: BlockMask
    hidden_keys: Bool[Tensor, "#batch #key_heads keys"] | None


def lower_mask(request: Request) -> FlexMask:
    """Return the mask of a request in the form of FlexAttention on its device, cached in the mask."""
    mask, (queries, keys) = request.mask, (request.frame.queries, request.frame.keys)
    assert mask is not None
    group = request.group if mask.heads not in (None, 1) else 1  # other masks are the same for all heads
    key = ("flex", queries, keys, group, request.device)
    return mask.get_cached(key, lambda: make_flex_mask(mask, queries, keys, group, request.device))


def make_flex_mask(mask: Mask, queries: int, keys: int, group: int, device: torch.device) -> FlexMask:
    """Convert the tile map of a mask; ``group`` query heads share the keys of a head."""
    tiles = mask.tiles(queries, keys, tile=BLOCK_SIZE)
    visible = find_visible_keys(tiles, group)
    hidden = None if bool(visible.all()) else copy_to(~visible, device)
    return FlexMask(make_block_mask(mask, tiles, device), hidden)


def make_block_mask(mask: Mask, tiles: TileMap, device: torch.device) -> BlockMask:
    """Convert a tile map to a BlockMask on a device."""
    codes, frame = tiles.codes(), tiles.frame
    partial, full = codes == PARTIAL, codes == FULL
    counts = [copy_to(kind.sum(-1).int(), device) for kind in (partial, full)]
    orders = [
        copy_to(kind.int().argsort(dim=-1, descending=True, stable=True).int(), device) for kind in (partial, full)
    ]
    return BlockMask.from_kv_blocks(
        counts[0],
        orders[0],
        counts[1],
        orders[1],
        BLOCK_SIZE=tiles.tile,
        mask_mod=mask.mask_mod(frame.queries, frame.keys, device=device),
        seq_lengths=(frame.queries, frame.keys),
    )


def find_visible_keys(tiles: TileMap, group: int) -> Bool[Tensor, "batch key_heads keys"]:
    """Find the keys that any query may attend to; ``group`` query heads share the keys of a head. On the CPU."""
    # One bit of every word at a time: unpacking all bits of a random mask would take 64 times the memory.
    columns = torch.stack([(tiles.bitmaps >> bit & 1).bool().any(1) for bit in range(64)], dim=-1).flatten(1)
    columns = torch.cat([columns, torch.ones(1, tiles.tile, dtype=torch.bool)])  # -1 is the last one: the full tile
    plane = torch.repeat_interleave(tiles.row_start[:, -1] - tiles.row_start[:, 0])
    counts = torch.zeros(tiles.batch * tiles.heads, tiles.key_tiles, tiles.tile, dtype=torch.int32)
    counts.index_put_((plane, tiles.key_tile.long()), columns[tiles.bitmap.long()].int(), accumulate=True)
    visible = (counts > 0).flatten(1)[:, : tiles.frame.keys].unflatten(0, (tiles.batch, tiles.heads))
    return visible.unflatten(1, (-1, group)).any(2)
