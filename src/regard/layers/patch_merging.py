"""Patch merging: neighbouring 2 x 2 tokens of a map become one, of twice the width.

    y = W norm([x(2i, 2j); x(2i + 1, 2j); x(2i, 2j + 1); x(2i + 1, 2j + 1)])        W (2 width, 4 width), no bias

(batch, rows * columns, width) -> (batch, ceil(rows / 2) * ceil(columns / 2), 2 width). A map with an odd side is padded
with zeros at its end. Liu et al. 2021, "Swin Transformer", section 3.1; the order of the four is the same as in the
published code.
"""

from __future__ import annotations

from typing import final

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.errors import check_size, check_weights
from regard.layers.projection import linear_activation


@final
class PatchMerging(nn.Module):
    """Merging of 2 x 2 tokens of ``width`` to one of ``2 * width``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        check_size("width", width)
        check_weights(width=2 * width, merged=4 * width)
        self.norm = nn.LayerNorm(4 * width)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(
        self, tokens: Float[Tensor, "batch tokens width"], rows: int, columns: int
    ) -> Float[Tensor, "batch merged twice_width"]:
        """Merge the tokens of a map of ``rows`` x ``columns``."""
        batch, _, width = tokens.shape
        plane = tokens.view(batch, rows, columns, width)
        if rows % 2 or columns % 2:
            plane = functional.pad(plane, (0, 0, 0, columns % 2, 0, rows % 2))
        pairs = plane.unflatten(1, (-1, 2)).unflatten(3, (-1, 2))  # (batch, i, below, j, right, width)
        merged = pairs.permute(0, 1, 3, 4, 2, 5).reshape(batch, -1, 4 * width)
        return linear_activation(self.norm(merged), self.reduction)
