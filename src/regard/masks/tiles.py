"""The tile map: the block-sparse form of a mask that kernels read.

The score matrix is divided into square tiles. Empty tiles are absent and cost nothing; full ones need no test; a
partial one has a bitmap, and equal bitmaps are stored once (a causal mask has one along its diagonal), so memory stays
linear for masks whose rows are intervals. Tiles are classified by three-valued logic: with EMPTY < PARTIAL < FULL,
``a & b`` is the minimum, ``a | b`` the maximum, and ``~a`` is FULL - a (Kleene 1938). PARTIAL may also mean "unknown";
the cells of such tiles are then evaluated, so the resulting map is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, final

import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor

from regard.arguments import explain_arguments
from regard.contract import Frame
from regard.errors import OptionError, short_repr
from regard.fields import repr_of_fields
from regard.masks.tile_rows import WORD_BITS, TileRows

if TYPE_CHECKING:
    from regard.masks.base import Mask, Rule

EMPTY, PARTIAL, FULL = 0, 1, 2
_MAX_TILE = 4096  # side of a tile: evaluating one takes memory for all its cells
_TILES_AT_ONCE = 1 << 21  # tiles classified in one step: bounds the memory of classification
_CELLS_AT_ONCE = 1 << 22  # cells evaluated in one step


@final
@dataclass(frozen=True)
class TileGrid:
    """The bounds of the tiles in a range of tile rows; the last tile of a side may be smaller.

    first_query, last_query (query_tiles, 1) and first_key, last_key (1, key_tiles), all inclusive.
    """

    frame: Frame
    tile: int
    first_row: int
    stop_row: int

    @cached_property
    def first_query(self) -> Int[Tensor, "query_tiles 1"]:
        """Index of each tile's first query."""
        return torch.arange(self.first_row, self.stop_row, device="cpu")[:, None] * self.tile

    @cached_property
    def last_query(self) -> Int[Tensor, "query_tiles 1"]:
        """Index of each tile's last query."""
        return (self.first_query + self.tile - 1).clamp(max=self.frame.queries - 1)

    @cached_property
    def first_key(self) -> Int[Tensor, "1 key_tiles"]:
        """Index of each tile's first key."""
        return torch.arange(0, self.frame.keys, self.tile, device="cpu")[None, :]

    @cached_property
    def last_key(self) -> Int[Tensor, "1 key_tiles"]:
        """Index of each tile's last key."""
        return (self.first_key + self.tile - 1).clamp(max=self.frame.keys - 1)

    def all_partial(self) -> Int8[Tensor, "1 1 query_tiles key_tiles"]:
        """Classify every tile as PARTIAL: nothing is known."""
        shape = (1, 1, self.first_query.shape[0], self.first_key.shape[1])
        return torch.full(shape, PARTIAL, dtype=torch.int8, device="cpu")

    def classify_interval(
        self, smallest: Tensor, largest: Tensor, low: Tensor | int | None, high: Tensor | int | None
    ) -> Int8[Tensor, "#batch #heads query_tiles key_tiles"]:
        """Classify tiles in which a quantity spans [smallest, largest], for the rule ``low <= quantity <= high``.

        The result is 4-d: the inputs broadcast to (batch, heads, query_tiles, key_tiles).
        """
        inside = torch.ones_like(smallest, dtype=torch.bool)
        outside = torch.zeros_like(smallest, dtype=torch.bool)
        if low is not None:
            inside, outside = inside & (smallest >= low), outside | (largest < low)
        if high is not None:
            inside, outside = inside & (largest <= high), outside | (smallest > high)
        return self.codes(empty=outside, full=inside)

    def codes(self, *, empty: Tensor, full: Tensor) -> Int8[Tensor, "#batch #heads query_tiles key_tiles"]:
        """EMPTY where ``empty``, FULL where ``full``, else PARTIAL, as a 4-d tensor over all tiles."""
        code = PARTIAL + full.to(torch.int8) - empty.to(torch.int8)
        code = code.reshape((1,) * (4 - code.dim()) + code.shape)
        return code.expand(*code.shape[:2], self.first_query.shape[0], self.first_key.shape[1])


@final
@explain_arguments
@dataclass(frozen=True)
class TileMap:
    """The tiles that are not empty, in compressed rows, for each batch entry and head in which the mask differs.

    row_start  (batch * heads, query_tiles + 1)  where each row of tiles begins in the lists below
    key_tile   (entries,)                        column of each tile, rising within a row
    bitmap     (entries,)                        -1: full; else the index of the tile's bitmap
    bitmaps    (distinct, tile, tile / 64)       bit ``j % 64`` of word ``j // 64`` in row i: may query i see key j
    """

    __repr__ = repr_of_fields

    frame: Frame
    tile: int
    batch: int
    heads: int
    row_start: Int[Tensor, "groups query_tiles_and_one"]
    key_tile: Int[Tensor, " entries"]
    bitmap: Int[Tensor, " entries"]
    bitmaps: Int[Tensor, "distinct tile words"]

    @property
    def query_tiles(self) -> int:
        """Number of rows of tiles."""
        return -(-self.frame.queries // self.tile)

    @property
    def key_tiles(self) -> int:
        """Number of columns of tiles."""
        return -(-self.frame.keys // self.tile)

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of empty, partial and full tiles, over all batch entries and heads."""
        total = self.batch * self.heads * self.query_tiles * self.key_tiles
        full = int((self.bitmap < 0).sum())
        partial = self.bitmap.numel() - full
        return {"empty": total - full - partial, "partial": partial, "full": full}

    @property
    def share(self) -> float:
        """Fraction of tiles that are not empty: the work relative to dense attention."""
        return self.bitmap.numel() / max(1, sum(self.counts.values()))

    def clone(self) -> TileMap:
        """Copy the map and its tensors, so that callers cannot change a cached map."""
        parts = {name: getattr(self, name).clone() for name in ("row_start", "key_tile", "bitmap", "bitmaps")}
        return replace(self, **parts)

    def codes(self) -> Int8[Tensor, "batch heads query_tiles key_tiles"]:
        """Expand the map to EMPTY, PARTIAL or FULL for each tile. Quadratic in the length."""
        groups = self.batch * self.heads
        codes = torch.zeros(groups * self.query_tiles, self.key_tiles, dtype=torch.int8, device="cpu")
        lengths = self.row_start.diff(dim=1).flatten()
        rows = torch.repeat_interleave(torch.arange(groups * self.query_tiles, device="cpu"), lengths)
        codes[rows, self.key_tile.long()] = torch.where(self.bitmap < 0, FULL, PARTIAL).to(torch.int8)
        return codes.view(self.batch, self.heads, self.query_tiles, self.key_tiles)

    def dense(self) -> Bool[Tensor, "batch heads queries keys"]:
        """Expand the map to the dense mask, for checks."""
        bits = (self.bitmaps[..., None] >> torch.arange(WORD_BITS, device="cpu")) & 1
        full = torch.ones(1, self.tile, self.tile, dtype=torch.bool, device="cpu")
        cells = torch.cat([bits.flatten(2).bool(), full])
        groups = self.batch * self.heads
        sizes = groups * self.query_tiles, self.key_tiles, self.tile, self.tile
        out = torch.zeros(sizes, dtype=torch.bool, device="cpu")
        lengths = self.row_start.diff(dim=1).flatten()
        rows = torch.repeat_interleave(torch.arange(groups * self.query_tiles, device="cpu"), lengths)
        out[rows, self.key_tile.long()] = cells[self.bitmap.long()]  # -1 indexes the last one: the full tile
        out = out.view(self.batch, self.heads, self.query_tiles, self.key_tiles, self.tile, self.tile)
        out = out.transpose(3, 4).flatten(4, 5).flatten(2, 3)
        return out[:, :, : self.frame.queries, : self.frame.keys]


def check_tile(tile: object) -> None:
    """Raise OptionError unless ``tile`` is a multiple of 64 from 64 to 4,096."""
    if (
        isinstance(tile, bool)
        or not isinstance(tile, Integral)
        or int(tile) not in range(WORD_BITS, _MAX_TILE + 1, WORD_BITS)
    ):
        raise OptionError(
            "wrong tile size",
            expected=f"a positive multiple of 64, at most {_MAX_TILE}",
            got=short_repr(tile),
            do="use tile=64",
        )


def build_tile_map(mask: Mask, frame: Frame, tile: int) -> TileMap:
    """Build the tile map of a mask.

    Time grows with the number of tiles ((length / tile) squared) and memory with the number of non-empty ones.
    """
    rules: dict[int, Rule] = {}
    batch, heads = (1 if size is None else size for size in (mask.batch, mask.heads))
    query_tiles, key_tiles = -(-frame.queries // tile), -(-frame.keys // tile)
    step = max(1, _TILES_AT_ONCE // max(1, batch * heads * key_tiles))
    found: list[tuple[Tensor, Tensor]] = []  # flat tile index, and its bitmap row (all ones for full)
    patterns: list[Tensor] = []
    known = 0
    for first in range(0, query_tiles, step):
        grid = TileGrid(frame, tile, first, min(first + step, query_tiles))
        codes = mask.classify(grid).expand(batch, heads, -1, -1)
        index, bitmap, bitmaps = _resolve_partial_tiles(mask, rules, grid, codes)
        group, row, column = index
        flat = (group * query_tiles + row) * key_tiles + column
        found.append((flat, torch.where(bitmap < 0, bitmap, bitmap + known)))
        patterns.append(bitmaps)
        known += bitmaps.shape[0]
    flat = torch.cat([part[0] for part in found]) if found else torch.zeros(0, dtype=torch.long, device="cpu")
    bitmap = torch.cat([part[1] for part in found]) if found else torch.zeros(0, dtype=torch.long, device="cpu")
    distinct = (
        torch.cat(patterns) if patterns else torch.zeros(0, tile, tile // WORD_BITS, dtype=torch.long, device="cpu")
    )
    if distinct.shape[0]:
        distinct, renamed = torch.unique(distinct, dim=0, return_inverse=True)
        bitmap = torch.where(bitmap < 0, bitmap, renamed[bitmap.clamp(min=0)])
    order = flat.argsort()
    flat, bitmap = flat[order], bitmap[order]
    edges = torch.arange(batch * heads * query_tiles + 1, device="cpu") * key_tiles
    starts = torch.searchsorted(flat, edges)
    first_rows = torch.arange(batch * heads, device="cpu")[:, None] * query_tiles
    window = first_rows + torch.arange(query_tiles + 1, device="cpu")
    return TileMap(
        frame=frame,
        tile=tile,
        batch=batch,
        heads=heads,
        row_start=starts[window].to(torch.int64),
        key_tile=(flat % max(1, key_tiles)).to(torch.int32),
        bitmap=bitmap.to(torch.int32),
        bitmaps=distinct,
    )


def _resolve_partial_tiles(
    mask: Mask, rules: dict[int, Rule], grid: TileGrid, codes: Int8[Tensor, "batch heads query_tiles key_tiles"]
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor, Tensor]:
    """Resolve PARTIAL tiles cell by cell.

    Returns the (group, row, column) of tiles that are not empty, their bitmap numbers, and the distinct bitmaps.
    """
    heads, tile = codes.shape[1], grid.tile
    first = torch.tensor([0, 0, grid.first_row, 0], device="cpu")
    sure = (codes == FULL).nonzero() + first
    unsure = (codes == PARTIAL).nonzero() + first
    kept: list[Tensor] = [sure]
    numbers: list[Tensor] = [torch.full((sure.shape[0],), -1, device="cpu")]
    patterns: list[Tensor] = []
    known = 0
    for part in unsure.split(max(1, _CELLS_AT_ONCE // tile**2)):
        rows = TileRows(grid.frame, tile, part, rules)
        cells = rows.cells
        bits = mask.tile_bits(rows) & cells
        some = (bits != 0).flatten(1).any(1)
        mixed = some & (bits != cells).flatten(1).any(1)
        bitmaps, number = torch.unique(bits[mixed], dim=0, return_inverse=True)
        numbering = torch.full((part.shape[0],), -1, device="cpu")
        numbering[mixed] = number + known
        kept.append(part[some])
        numbers.append(numbering[some])
        patterns.append(bitmaps)
        known += bitmaps.shape[0]
    entries = torch.cat(kept)
    group = entries[:, 0] * heads + entries[:, 1]
    empty = torch.zeros(0, tile, tile // WORD_BITS, dtype=torch.long, device="cpu")
    return (group, entries[:, 2], entries[:, 3]), torch.cat(numbers), torch.cat([empty, *patterns])
