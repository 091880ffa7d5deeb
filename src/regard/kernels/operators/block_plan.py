"""``BlockPlan``: the queries of a call in the order in which the tile kernels compute chosen blocks with dropout.

    first   tiles of queries in their own order: each attends to the tiles of its own block, the last by a triangle
    then    for each block the queries that chose it, filled up to whole tiles: each attends to all tiles of the block

So a row of the plan is one *part* of a query: its own block, or a block that it chose. A tile of 64 rows shares its
keys, whatever the queries are, and the tile map has one bitmap, the triangle. A choice differs in each call, so that
nothing is cached; making the plan takes time in proportion to the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.kernels.operators.kernel_arguments import KernelArguments

TILE = 64
_MIN_ROWS = 2 * TILE
"""With fewer rows the decoding kernels may run, whose backward pass does not take a normalizer."""


@final
@dataclass(frozen=True, eq=False)
class BlockPlan:
    """Rows of the plan, for each (batch, head).

    source (batch * heads, rows)          the query of each row, -1 if there is none
    parts (batch * heads, queries, parts) the rows of each query, -1 if there are fewer; the own block is the first
    """

    sizes: tuple[int, int]
    source: Int[Tensor, "groups rows"]
    parts: Int[Tensor, "groups queries parts"]
    row_start: Int[Tensor, "batch heads tiles_and_one"]
    key_tile: Int[Tensor, " entries"]
    bitmap: Int[Tensor, " entries"]
    stop: Int[Tensor, " batch"] | None

    @classmethod
    def of(
        cls,
        chosen: Bool[Tensor, "batch heads queries blocks"],
        stop: Int[Tensor, " batch"] | None,
        block: int,
        queries: int,
        keys: int,
    ) -> BlockPlan:
        """Make the plan of a call; ``chosen`` marks complete blocks before the own one of a query."""
        batch, heads, _, blocks = chosen.shape
        offset, groups = keys - queries, batch * heads
        first_tile = offset // TILE
        front = offset - first_tile * TILE  # rows before the first query, so that tiles begin at multiples of 64
        own_tiles = -(-(front + queries) // TILE)
        by_block = chosen.flatten(0, 1).transpose(1, 2).contiguous()  # (groups, blocks, queries)
        group, number, query = by_block.nonzero(as_tuple=True)
        counts = by_block.sum(-1)
        lists, tiles = counts.flatten(), -(-counts // TILE)
        rank = torch.arange(len(query)) - (lists.cumsum(0) - lists)[group * blocks + number]
        first_tiles = tiles.cumsum(1) - tiles + own_tiles
        slot = first_tiles[group, number] * TILE + rank
        per_group = tiles.sum(1) + own_tiles
        all_tiles = max(int(per_group.max()), _MIN_ROWS // TILE)
        source = torch.full((groups, all_tiles * TILE), -1)
        source[:, front : front + queries] = torch.arange(queries)
        source[group, slot] = query
        turn = chosen.flatten(0, 1).cumsum(2, dtype=torch.int32)
        parts = torch.full((groups, queries, 1 + int(turn[..., -1].max()) if turn.numel() else 1), -1)
        parts[:, :, 0] = torch.arange(front, front + queries)
        parts[group, query, turn[group, query, number].long()] = slot
        first, count = _key_tiles_of_own(own_tiles, first_tile, stop, block, batch, keys)
        begin, length = (torch.zeros(groups, all_tiles, dtype=torch.long) for _ in range(2))
        begin[:, :own_tiles] = first.repeat_interleave(heads, 0)
        length[:, :own_tiles] = count.repeat_interleave(heads, 0)
        owner = torch.arange(groups)[:, None].expand_as(tiles).repeat_interleave(tiles.flatten())
        of_block = torch.arange(blocks).expand_as(tiles).repeat_interleave(tiles.flatten())
        place = torch.arange(len(owner)) - (per_group - own_tiles).cumsum(0)[owner] + per_group[owner]
        begin[owner, place] = of_block * (block // TILE)
        length[owner, place] = block // TILE
        begin, length = begin.flatten(), length.flatten()
        ends = torch.nn.functional.pad(length.cumsum(0), (1, 0))
        row = torch.arange(len(length)).repeat_interleave(length)
        key_tile = begin[row] + torch.arange(len(row)) - ends[row]
        at = row % all_tiles
        diagonal = (at < own_tiles) & (key_tile == at + first_tile)
        starts = torch.arange(groups)[:, None] * all_tiles + torch.arange(all_tiles + 1)
        return cls(
            (batch, heads),
            source,
            parts,
            ends[starts].view(batch, heads, -1),
            key_tile.int(),
            diagonal.int() - 1,
            stop,
        )

    def gather(self, tokens: Float[Tensor, "batch heads queries size"]) -> Float[Tensor, "batch heads rows size"]:
        """Return the tokens of the plan's rows; a row without a query has the tokens of any query."""
        groups, queries = self.parts.shape[:2]
        flat = (self.source.clamp(min=0) + torch.arange(groups)[:, None] * queries).flatten()
        return tokens.flatten(0, 2).index_select(0, flat).view(*self.sizes, -1, tokens.shape[3])

    def gather_normalizer(
        self, normalizer: Float[Tensor, "batch heads queries 2"]
    ) -> Float[Tensor, "batch heads rows 2"]:
        """Return the normalizers of the plan's rows, such that rows without a query take no part."""
        return self.gather(normalizer).masked_fill((self.source < 0).view(*self.sizes, -1, 1), -torch.inf)

    def gather_parts(
        self, rows: Float[Tensor, "batch heads rows size"], *, missing: float
    ) -> Float[Tensor, "batch heads queries parts size"]:
        """Return the rows of each query's parts; ``missing`` where there are fewer."""
        found = rows.flatten(0, 2).index_select(0, self._flat_parts()).view(*self.parts.shape, rows.shape[3])
        return found.masked_fill((self.parts < 0)[..., None], missing).unflatten(0, self.sizes)

    def add_parts(
        self,
        rows: Float[Tensor, "batch heads rows size"],
        shares: Float[Tensor, "batch heads queries parts"] | None,
    ) -> Float[Tensor, "batch heads queries size"]:
        """Sum the parts of each query, times their ``shares`` (None: 1)."""
        shares = (self.parts >= 0).to(rows.dtype) if shares is None else shares.flatten(0, 1)
        sums = torch.nn.functional.embedding_bag(
            self._flat_parts().view(-1, self.parts.shape[2]),
            rows.flatten(0, 2),
            mode="sum",
            per_sample_weights=shares.reshape(-1, self.parts.shape[2]),
        )
        return sums.view(*self.sizes, -1, rows.shape[3])

    def kernel_arguments(self, scale: float) -> KernelArguments:
        """Return the mask and the scale for the tile kernels."""
        return KernelArguments(
            stop=self.stop,
            start=None if self.stop is None else torch.zeros_like(self.stop),
            row_start=self.row_start,
            key_tile=self.key_tile,
            bitmap=self.bitmap,
            bitmaps=_TRIANGLE,
            scale=scale,
        )

    def _flat_parts(self) -> Int[Tensor, " parts"]:
        groups, rows = self.source.shape
        return (self.parts.clamp(min=0) + torch.arange(groups)[:, None, None] * rows).flatten()


def _key_tiles_of_own(
    own_tiles: int, first_tile: int, stop: Tensor | None, block: int, batch: int, keys: int
) -> tuple[Int[Tensor, "batch own_tiles"], Int[Tensor, "batch own_tiles"]]:
    """Return the first key tile of the own block of each tile of queries, and how many there are up to the tile.

    Queries at or behind ``stop`` have the block of the last key before it as their own.
    """
    tile = torch.arange(first_tile, first_tile + own_tiles).expand(batch, -1)
    last_key = torch.full((batch, 1), keys) if stop is None else stop[:, None]
    last_key = last_key - 1
    first = torch.minimum(tile * TILE, last_key) // block * (block // TILE)
    last = torch.minimum(tile, last_key // TILE)
    count = torch.where((tile < 0) | (last_key < 0), 0, last - first + 1)
    return first.clamp(min=0), count


_TRIANGLE = torch.tensor([(1 << (row + 1)) - 1 if row < 63 else -1 for row in range(TILE)], dtype=torch.long)[None]
