"""``DeviceTiles``: a tile map in the memory of a device, by rows and by columns, as GPU kernels read it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, final

import torch
from jaxtyping import Int
from torch import Tensor

from regard.copy_to_device import copy_to

if TYPE_CHECKING:
    from regard.masks.tiles import TileMap


@final
@dataclass(frozen=True, eq=False)
class DeviceTiles:
    """The tiles of each row and of each column of a tile map, full ones first.

    bounds  (groups, rows or columns, 3)  where the full tiles begin, where the partial ones begin, and where they end
    tile    (entries,)                    the number of each tile in its row or column, rising
    bitmap  (entries,)                    -1: full; else the index of the tile's bitmap
    bitmaps (distinct, 64)                those of the map; an index of bitmaps is 0 or more, so there is at least one

    A group is a batch entry and a head in which the mask differs: ``batch`` times ``heads`` of them, which are 1 where
    it does not.
    """

    batch: int
    heads: int
    row_bounds: Int[Tensor, "groups query_tiles 3"]
    row_tile: Int[Tensor, " entries"]
    row_bitmap: Int[Tensor, " entries"]
    column_bounds: Int[Tensor, "groups key_tiles 3"]
    column_tile: Int[Tensor, " entries"]
    column_bitmap: Int[Tensor, " entries"]
    bitmaps: Int[Tensor, "distinct 64"]

    @cached_property
    def codes(self) -> Int[Tensor, "groups query_tiles key_tiles"]:
        """The code of each tile by its place: -2 empty, -1 full, else the number of its bitmap. Quadratic in length."""
        return self.codes_of(torch.arange(self.row_bounds.shape[1], device=self.row_bounds.device))

    def codes_of(self, rows: Int[Tensor, " lines"]) -> Int[Tensor, "groups lines key_tiles"]:
        """Return the codes of the tiles in some rows of tiles, as in ``codes``; rows may repeat."""
        groups, columns = self.row_bounds.shape[0], self.column_bounds.shape[1]
        bounds = self.row_bounds[:, rows].flatten(0, 1).long()
        lengths = bounds[:, 2] - bounds[:, 0]
        line = torch.repeat_interleave(lengths)
        number = torch.arange(line.shape[0], device=line.device)  # of the tiles of all lines
        entry = number + (bounds[:, 0] - (lengths.cumsum(0) - lengths))[line]
        codes = self.row_bitmap.new_full((bounds.shape[0], columns), -2)
        codes[line, self.row_tile[entry].long()] = self.row_bitmap[entry]
        return codes.view(groups, -1, columns)

    @property
    def strides(self) -> tuple[int, int]:
        """How many groups lie between two batch entries, and between two heads."""
        return (self.heads if self.batch > 1 else 0), (1 if self.heads > 1 else 0)


def move_tiles(tiles: TileMap, device: torch.device) -> DeviceTiles:
    """Sort the tiles of a map of 64 x 64 cells by rows and by columns, and move them to a device."""
    groups, rows = tiles.batch * tiles.heads, tiles.query_tiles
    lengths = tiles.row_start.diff(dim=1).flatten()
    row = torch.repeat_interleave(torch.arange(groups * rows, device="cpu"), lengths)
    group, row, column = row // max(1, rows), row % max(1, rows), tiles.key_tile.long()
    by_row = _list_tiles(group * rows + row, column, tiles.bitmap, groups, rows)
    by_column = _list_tiles(group * tiles.key_tiles + column, row, tiles.bitmap, groups, tiles.key_tiles)
    parts = (*by_row, *by_column, tiles.bitmaps.flatten(1))
    return DeviceTiles(tiles.batch, tiles.heads, *(copy_to(part, device) for part in parts))


def _list_tiles(
    line: Int[Tensor, " entries"],
    tile: Int[Tensor, " entries"],
    bitmap: Int[Tensor, " entries"],
    groups: int,
    lines: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """List the tiles of each line, a row or column of a group, full ones first: the bounds, tiles and bitmaps."""
    is_partial = bitmap >= 0
    length = int(tile.max()) + 1 if tile.numel() else 1
    order = ((line * 2 + is_partial) * length + tile).argsort()
    counts = torch.zeros(groups * lines, 2, dtype=torch.long, device="cpu")
    counts.view(-1).index_add_(0, line * 2 + is_partial, torch.ones_like(line))
    ends = counts.flatten().cumsum(0).view(-1, 2)
    begins = ends[:, 1] - counts.sum(1)
    bounds = torch.stack([begins, ends[:, 0], ends[:, 1]], dim=1).view(groups, lines, 3)
    return bounds.int(), tile[order].int(), bitmap[order].int()
