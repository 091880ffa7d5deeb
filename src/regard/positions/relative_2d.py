"""Relative positions in a square window of a picture: a trained number for each head and pair of offsets.

    score(i, j) += table[(y_i - y_j + M - 1) (2M - 1) + (x_i - x_j + M - 1), h]

Token i of a window of m x m tokens, m <= M, is in row y_i = i // m and column x_i = i % m. The table is
((2M - 1)^2, heads), as in Swin checkpoints. A smaller window uses the middle of the table: the same offsets have the
same bias.

Liu et al. 2021, "Swin Transformer: hierarchical vision transformer using shifted windows", section 3.2, equation 4.
"""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.contract import Frame
from regard.errors import ShapeError, check_number, check_sizes, check_weights
from regard.positions.base import DenseBias


@final
@explain_arguments
class Relative2d(DenseBias):
    """Relative position bias of windows of at most ``window`` x ``window`` tokens, in row-major order.

    ``weight`` is the table, ((2 window - 1)^2, heads), as in Swin checkpoints. ``deviation`` is the standard deviation
    of its initial numbers.
    """

    def __init__(self, heads: int, window: int, *, deviation: float = 0.02) -> None:
        super().__init__()
        check_sizes(heads=heads, window=window)
        check_number("deviation", deviation, minimum=0.0)
        offsets = 2 * window - 1
        check_weights(offsets=offsets, others=offsets, heads=heads)
        self.heads, self.window = heads, window
        self.weight = nn.Parameter(torch.empty(offsets**2, heads))
        nn.init.normal_(self.weight, std=float(deviation))

    def dense(self, frame: Frame) -> Float[Tensor, "1 heads queries keys"]:
        """Return the bias of each pair. Raises ShapeError unless the keys are a window, and the queries among them."""
        side = math.isqrt(frame.keys)
        if side**2 != frame.keys or side > self.window or frame.queries > frame.keys:
            raise ShapeError(
                "tokens are not a window of this relative position bias",
                expected=f"m x m keys, m at most {self.window}, and at most as many queries",
                got=f"{frame.queries} queries and {frame.keys} keys",
                do="divide the picture into square windows; build the bias with the side of the largest",
            )
        if side == 0:
            return self.weight[:0].reshape(1, self.heads, 0, 0)
        pairs = spread_over_pairs(self.table_of(side))[None]
        return pairs if frame.queries == frame.keys else pairs[:, :, frame.offset :]

    def table_of(self, side: int) -> Float[Tensor, "offsets offsets heads"]:
        """The table of windows of ``side`` x ``side`` tokens: the middle of the one of the largest windows."""
        offsets = 2 * self.window - 1
        first, past = self.window - side, self.window + side - 1
        return self.weight.view(offsets, offsets, self.heads)[first:past, first:past]

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"heads={self.heads}, window={self.window}"


def spread_over_pairs(table: Float[Tensor, "offsets offsets heads"]) -> Float[Tensor, "heads queries keys"]:
    """The bias of each pair of tokens of a window, from the table of its offsets."""
    side, heads = (table.shape[0] + 1) // 2, table.shape[2]
    # pairs[y_i, x_i, h, side - 1 - y_j, side - 1 - x_j]: the rows of a query are slices of the table, whose
    # gradient is summed in a fixed order. Indexing every pair would sum it in the order in which threads arrive.
    pairs = table.unfold(0, side, 1).unfold(1, side, 1)
    return pairs.permute(2, 0, 1, 3, 4).flip(3, 4).reshape(heads, side**2, side**2)
