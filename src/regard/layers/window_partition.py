"""Windows of a picture: which tokens of a feature map attend to each other, and where they lie.

    split    (batch, rows * columns, width) -> (batch * windows, size^2, width)
    join     the way back; tokens that were added to fill windows are dropped

Both axes are padded at their end to multiples of the window's size, and shifted cyclically: token (y, x) of the shifted
map is token (y + shift, x + shift) of the padded one, modulo its size. Windows are counted row by row, all windows of
one picture before the windows of the next, and so are the tokens in a window.

Liu et al. 2021, "Swin Transformer", section 3.2. Padding follows the published code: the added tokens are zeros, and
take part in attention like any others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from regard.masks.shifted_windows import ShiftedWindows, check_windows


@final
@dataclass(frozen=True)
class WindowPartition:
    """The division of a map of ``rows`` x ``columns`` tokens into windows of ``size`` x ``size``, after a ``shift``."""

    rows: int
    columns: int
    size: int
    shift: int = 0

    def __post_init__(self) -> None:
        check_windows(self.rows, self.columns, self.size, self.shift)

    @classmethod
    def of(cls, rows: int, columns: int, *, window: int, shift: int) -> WindowPartition:
        """Divide a map into windows of ``window`` x ``window``; if a side of the map is no longer than that, into
        windows of this side without a shift, since one window then covers the side.
        """
        side = min(rows, columns)
        return cls(rows, columns, side) if side <= window else cls(rows, columns, window, shift)

    @property
    def window_rows(self) -> int:
        """The number of windows from top to bottom."""
        return -(-self.rows // self.size)

    @property
    def window_columns(self) -> int:
        """The number of windows from left to right."""
        return -(-self.columns // self.size)

    @property
    def slots(self) -> Int[Tensor, "windows tokens"]:
        """The index of each token of each window in the padded map, row by row."""
        y, x = (
            (torch.arange(count * self.size) + self.shift) % (count * self.size)
            for count in (self.window_rows, self.window_columns)
        )
        index = y[:, None] * len(x) + x
        by_window = index.view(self.window_rows, self.size, self.window_columns, self.size).transpose(1, 2)
        return by_window.reshape(self.window_rows * self.window_columns, self.size**2)

    @property
    def cells(self) -> Int[Tensor, "windows tokens"]:
        """The index y * columns + x in the map of each token of each window; -1 for tokens that fill a window."""
        slots, padded_columns = self.slots, self.window_columns * self.size
        y, x = slots // padded_columns, slots % padded_columns
        return torch.where((y < self.rows) & (x < self.columns), y * self.columns + x, -1)

    def mask(self, pictures: int) -> ShiftedWindows | None:
        """The mask that keeps opposite edges apart, for the windows of so many pictures; None without a shift."""
        if self.shift == 0:
            return None
        return ShiftedWindows(self.window_rows, self.window_columns, self.size, self.shift, pictures)

    def split(self, tokens: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "windows window_tokens width"]:
        """Divide the tokens of a map into windows."""
        batch, _, width = tokens.shape
        plane = tokens.view(batch, self.rows, self.columns, width)
        height, breadth = self.window_rows * self.size, self.window_columns * self.size
        if (height, breadth) != (self.rows, self.columns):
            plane = functional.pad(plane, (0, 0, 0, breadth - self.columns, 0, height - self.rows))
        if self.shift:
            plane = plane.roll((-self.shift, -self.shift), (1, 2))
        grid = plane.view(batch, self.window_rows, self.size, self.window_columns, self.size, width)
        return grid.transpose(2, 3).reshape(-1, self.size**2, width)

    def join(self, windows: Float[Tensor, "windows window_tokens width"]) -> Float[Tensor, "batch tokens width"]:
        """Put the tokens of windows back in their places in the map."""
        width = windows.shape[-1]
        grid = windows.view(-1, self.window_rows, self.window_columns, self.size, self.size, width)
        plane = grid.transpose(2, 3).reshape(-1, self.window_rows * self.size, self.window_columns * self.size, width)
        if self.shift:
            plane = plane.roll((self.shift, self.shift), (1, 2))
        return plane[:, : self.rows, : self.columns].reshape(-1, self.rows * self.columns, width)
