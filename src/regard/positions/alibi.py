"""ALiBi: scores fall linearly with distance, at a slope of its own for each head.

    score(i, j) += -slope_h |j - i|,    slope_h = 2^(-8 h / heads) for h = 1 .. heads

Press et al. 2022, section 3. Where heads is no power of two: the slopes of the power below, then every other
slope of the power above (the paper's published code). Used with a causal mask there; symmetric here, so it
also serves encoders.
"""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import check_size
from regard.positions.base import DistanceBias


@final
class ALiBi(DistanceBias):
    """Linear bias by distance for ``heads`` heads; nothing trained."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        check_size("heads", heads)
        self.heads = heads

    def table(self, lowest: int, highest: int) -> Float[Tensor, "heads distances"]:
        """``-slope |distance|``, in float64: whoever adds it rounds it once, to the dtype of the scores."""
        distance = torch.arange(lowest, highest + 1, dtype=torch.float64)
        return -torch.tensor(slopes(self.heads), dtype=torch.float64)[:, None] * distance.abs()

    def extra_repr(self) -> str:
        """For printing."""
        return f"heads={self.heads}"


def slopes(heads: int) -> list[float]:
    """The slope of each head, steepest first within each power of two."""
    power = 2 ** math.floor(math.log2(heads))
    first = [2.0 ** (-8.0 * head / power) for head in range(1, power + 1)]
    rest = [2.0 ** (-8.0 * head / (2 * power)) for head in range(1, 2 * power + 1, 2)]
    return first + rest[: heads - power]
