"""Mask of shifted windows: where a window holds tokens from opposite edges of a picture, they are kept apart.

Windows are batch entries, all windows of one picture before the windows of the next. The picture was shifted cyclically
by ``shift`` rows and columns before it was divided into windows of ``size`` x ``size`` tokens. So in the last row of
windows the last ``shift`` rows of tokens come from the top of the picture, and in the last column the last columns from
its left. With y_i = i // size and x_i = i % size,

    allowed(i, j) = (y_i < size - shift) == (y_j < size - shift)          in the last row of windows
                and (x_i < size - shift) == (x_j < size - shift)          in the last column of windows

Liu et al. 2021, "Swin Transformer", section 3.2 and figure 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Int8
from torch import Tensor

from regard.contract import Frame, check_length
from regard.errors import LARGEST_SIZE, OptionError, ShapeError, check_count, check_sizes
from regard.masks.base import TILE_SIZE, Mask, Rule, make_frame
from regard.masks.kernel_mask import KernelMask
from regard.masks.tiles import TileGrid
from regard.tensors import is_traced


@final
@dataclass(frozen=True, repr=False)
class ShiftedWindows(Mask):
    """Mask of ``rows`` x ``columns`` windows of ``pictures`` pictures, as batch entries.

    Windows of ``size`` x ``size`` tokens in row-major order, after a cyclic shift by ``shift`` tokens, 0 to size - 1.
    """

    rows: int
    columns: int
    size: int
    shift: int
    pictures: int = 1

    def __post_init__(self) -> None:
        check_windows(self.rows, self.columns, self.size, self.shift)
        check_length("pictures", self.pictures, minimum=1, maximum=LARGEST_SIZE)  # symbolic in a trace
        object.__setattr__(self, "batch", self.rows * self.columns * self.pictures)

    def __repr__(self) -> str:
        sizes = f"{self.rows} x {self.columns} windows of {self.size} x {self.size}, shift={self.shift}"
        return f"ShiftedWindows({sizes}, pictures={self.pictures})"

    def check_lengths(self, queries: int, keys: int) -> None:
        """Raise ShapeError unless queries and keys are the tokens of a window."""
        if queries != self.size**2 or keys != self.size**2:
            raise ShapeError(
                "tokens are not a window of this mask",
                expected=f"{self.size**2} queries and keys, for windows of {self.size} x {self.size}",
                got=f"{queries} queries and {keys} keys",
                do="build the mask with the size of the windows",
            )

    def mask_mod(self, queries: int, keys: int, *, device: torch.device | str | None = None) -> Rule:
        """Return the rule. Raises ShapeError unless queries and keys are the tokens of a window."""
        make_frame(queries, keys)
        self.check_lengths(queries, keys)
        edge = self.size - self.shift

        def rule(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            del head
            same_rows = (query // self.size < edge) == (key // self.size < edge)
            same_columns = (query % self.size < edge) == (key % self.size < edge)
            last_row, last_column = self._is_at_edge(batch)
            return (same_rows | ~last_row) & (same_columns | ~last_column)

        return rule

    def lower(self, frame: Frame) -> KernelMask:
        """Convert to tiles, also within a single tile: the map is cached, and most windows of a picture are full."""
        if is_traced():
            return super().lower(frame)
        self.check_lengths(frame.queries, frame.keys)
        return KernelMask(tiles=self._get_tile_map(self, (), frame, TILE_SIZE))

    def classify(self, grid: TileGrid) -> Int8[Tensor, "#batch #heads query_tiles key_tiles"]:
        """Classify the tiles of windows that are not at an edge as FULL; the others are unknown."""
        last_row, last_column = self._is_at_edge(torch.arange(self.rows * self.columns * self.pictures, device="cpu"))
        inside = ~(last_row | last_column)[:, None, None, None]
        return grid.codes(empty=torch.zeros_like(inside), full=inside | (self.shift == 0))

    def _is_at_edge(self, window: Tensor) -> tuple[Tensor, Tensor]:
        """Whether each window, a batch entry, is in the last row and in the last column of its picture."""
        in_picture = window % (self.rows * self.columns)
        return in_picture // self.columns == self.rows - 1, in_picture % self.columns == self.columns - 1


def check_windows(rows: int, columns: int, size: int, shift: int) -> None:
    """Raise OptionError unless these are sizes, and windows are shifted by less than their size."""
    check_sizes(rows=rows, columns=columns, size=size)
    check_count("shift", shift, minimum=0)
    if shift >= size:
        raise OptionError(
            "windows are shifted by less than their size",
            expected=f"shift from 0 to {size - 1}",
            got=str(shift),
            do="half a window is the published value",
        )
