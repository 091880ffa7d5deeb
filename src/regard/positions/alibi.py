"""ALiBi: a bias of scores that decreases linearly with distance, with a different slope for each head.

    score(i, j) += -slope_h |j - i|,    slope_h = 2^(-8 h / heads) for h = 1 .. heads

Press et al. 2022, section 3. If heads is not a power of two: the slopes of the next lower power, then every other
slope of the next higher one (the paper's published code). The paper uses it with a causal mask; here it is symmetric,
so it also works in encoders.
"""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import check_size
from regard.positions.base import DistanceBias


@final
@explain_arguments
class ALiBi(DistanceBias):
    """ALiBi: a bias linear in distance for ``heads`` heads, without parameters."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        check_size("heads", heads)
        self.heads = heads

    def table(self, lowest: int, highest: int) -> Float[Tensor, "heads distances"]:
        """Return ``-slope |distance|`` in float64, so that it is rounded only once, to the dtype of the scores."""
        distance = torch.arange(lowest, highest + 1, dtype=torch.float64)
        return -torch.tensor(slopes(self.heads), dtype=torch.float64)[:, None] * distance.abs()

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"heads={self.heads}"


def slopes(heads: int) -> list[float]:
    """Compute the slope of each head, steepest first within each power of two."""
    power = 2 ** math.floor(math.log2(heads))
    first = [2.0 ** (-8.0 * head / power) for head in range(1, power + 1)]
    rest = [2.0 ** (-8.0 * head / (2 * power)) for head in range(1, 2 * power + 1, 2)]
    return first + rest[: heads - power]
