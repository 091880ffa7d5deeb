"""Block list mask: each block of queries may attend to the blocks of keys in its list.

    (key - start) // block in key_blocks[head, (position(query) - start) // block]

Zaheer et al. 2020 (BigBird), section 2 and appendix D: a block-sparse pattern, here for each head or the same in all.
Lists take memory in proportion to the number of blocks that are listed. Tokens before ``start`` belong to no block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Int, Int8
from torch import Tensor

from regard.masks.as_tensor import to_device
from regard.masks.base import Mask, Rule, make_frame
from regard.masks.tile_rows import TileRows
from regard.masks.tiles import TileGrid


@final
@dataclass(frozen=True, eq=False, repr=False)
class BlockLists(Mask):
    """Block list mask: ``key_blocks`` lists different key blocks for each query block, filled up with -1.

    Query blocks without a list may attend to nothing.
    """

    key_blocks: Int[Tensor, "heads query_blocks listed"]
    block: int
    start: int = 0

    def __post_init__(self) -> None:
        heads = self.key_blocks.shape[0]
        object.__setattr__(self, "heads", heads if heads != 1 else None)

    def __repr__(self) -> str:
        return f"block_lists{tuple(self.key_blocks.shape)}"

    def check_lengths(self, queries: int, keys: int) -> None:
        """Accept any lengths: the mask is not made for particular ones."""

    def mask_mod(self, queries: int, keys: int, *, device: torch.device | str | None = None) -> Rule:
        """Return the rule for these lengths, with its tensors on ``device``."""
        first, block, start = make_frame(queries, keys).offset - self.start, self.block, self.start
        lists, is_shared = to_device(self.key_blocks, device), self.heads is None

        def rule(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            del batch
            row, column = (query + first) // block, (key - start) // block
            allowed = torch.zeros_like(head + row + column, dtype=torch.bool)
            if lists.numel() == 0:
                return allowed
            listed = lists[head * 0 if is_shared else head, row.clamp(0, lists.shape[1] - 1)]
            for place in range(lists.shape[2]):
                allowed = allowed | (listed[..., place] == column)
            return allowed & (row >= 0) & (row < lists.shape[1]) & (column >= 0)

        return rule

    def classify(self, grid: TileGrid) -> Int8[Tensor, "#batch #heads query_tiles key_tiles"]:
        """Classify each tile by counting its cells that are in listed blocks."""
        lists, tile, block = self.key_blocks.cpu(), grid.tile, self.block
        heads, query_blocks, _ = lists.shape
        counts = torch.zeros(heads, grid.first_query.shape[0], grid.first_key.shape[1], dtype=torch.int32, device="cpu")
        if counts.numel() == 0 or lists.numel() == 0:
            return grid.all_partial()
        first, last = (side[:, 0] + grid.frame.offset - self.start for side in (grid.first_query, grid.last_query))
        for step in range((tile + block - 2) // block + 1):  # query blocks that a tile may overlap
            row = first // block + step
            rows = _overlap(first, last, row * block, (row + 1) * block - 1)
            rows = rows.masked_fill((row < 0) | (row >= query_blocks), 0)
            columns = lists[:, row.clamp(0, query_blocks - 1)]
            for place in range((block + tile - 2) // tile + 1):  # key tiles that a block may overlap
                begin = columns * block + self.start
                at = begin // tile + place
                cells = _overlap(at * tile, ((at + 1) * tile).clamp(max=grid.frame.keys) - 1, begin, begin + block - 1)
                cells = cells.masked_fill((columns < 0) | (at >= counts.shape[2]), 0) * rows[None, :, None]
                counts.scatter_add_(2, at.clamp(0, counts.shape[2] - 1), cells.int())
        sizes = (grid.last_query - grid.first_query + 1) * (grid.last_key - grid.first_key + 1)
        return grid.codes(empty=counts == 0, full=counts == sizes)

    def tile_bits(self, rows: TileRows) -> Int[Tensor, "tiles tile words"]:
        """Set the bits of the keys of each query's blocks."""
        lists, block = self.key_blocks.cpu(), self.block
        row = (rows.query + rows.frame.offset - self.start) // block
        bits = torch.zeros_like(row + rows.word)
        if lists.numel() == 0:
            return bits
        listed = lists[rows.head * 0 if self.heads is None else rows.head, row.clamp(0, lists.shape[1] - 1)]
        listed = listed.masked_fill(((row < 0) | (row >= lists.shape[1]))[..., None], -1)
        for column in listed.unbind(-1):
            begin = column * block + self.start
            bits |= torch.where(column < 0, 0, rows.between(begin, begin + block))
        return bits


def _overlap(first: Tensor, last: Tensor, begin: Tensor, end: Tensor) -> Tensor:
    """Count the numbers that two inclusive ranges share."""
    return (torch.minimum(last, end) - torch.maximum(first, begin) + 1).clamp(min=0)
