"""Learned positions of the patches of a picture, for pictures of any size.

    P[r, c] = a trained vector for each place of a grid of rows x columns, and one for each token before it

For another grid of R x C, the vector of place (r, c) is interpolated at ((r + 1/2) rows / R - 1/2, (c + 1/2) columns /
C - 1/2) by cubic convolution of the 4 x 4 nearest trained vectors (Keys 1981, with a = -0.75); beyond the border they
equal the vectors at the border. In the trained grid these are the trained vectors themselves. The tokens before the
grid keep their vectors.
Dosovitskiy et al. 2021, "An image is worth 16x16 words", section 3.2. Returns (1, tokens before + R * C, width).
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.arguments import explain_arguments
from regard.errors import LARGEST_SIZE, check_count, check_number, check_sizes, check_weights
from regard.tensors import is_traced


@final
@explain_arguments
class LearnedGrid(nn.Module):
    """Learned vectors for a grid of ``rows`` x ``columns`` places, interpolated for other grids.

    ``prefix`` is the number of tokens before the tokens of the grid, such as 1 for a class token; ``deviation`` is the
    standard deviation of the initial vectors, which are cut at two deviations.
    """

    def __init__(self, rows: int, columns: int, width: int, *, prefix: int = 0, deviation: float = 0.02) -> None:
        super().__init__()
        check_sizes(rows=rows, columns=columns, width=width)
        check_count("prefix", prefix, minimum=0, maximum=LARGEST_SIZE)
        check_number("deviation", deviation, minimum=0.0)
        check_weights(rows=rows, columns=columns, width=width)
        check_weights(prefix=max(1, prefix), width=width)
        self.rows, self.columns, self.prefix = rows, columns, prefix
        self.weight = nn.Parameter(torch.empty(1, prefix + rows * columns, width))
        init_truncated_normal(self.weight, float(deviation))

    def forward(self, rows: int, columns: int) -> Float[Tensor, "1 tokens width"]:
        """Return the vectors of the tokens before the grid, and of a grid of ``rows`` x ``columns``, row by row."""
        if not is_traced():
            check_sizes(rows=rows, columns=columns)
            check_weights(rows=rows, columns=columns, width=self.weight.shape[2])
        placed = interpolate_grid(self.weight[0], (self.rows, self.columns), (rows, columns), prefix=self.prefix)
        return placed[None]

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"rows={self.rows}, columns={self.columns}, width={self.weight.shape[2]}, prefix={self.prefix}"


def interpolate_grid(
    vectors: Float[Tensor, "trained width"], trained: tuple[int, int], grid: tuple[int, int], *, prefix: int
) -> Float[Tensor, "tokens width"]:
    """Interpolate the vectors of a ``trained`` grid (rows, columns), after ``prefix`` others, for another ``grid``."""
    if grid == trained:
        return vectors
    places = vectors[prefix:].unflatten(0, trained).permute(2, 0, 1)[None]
    # In half precision the sum of 16 products would be rounded at each step.
    wide = places.to(torch.promote_types(places.dtype, torch.float32))
    placed = functional.interpolate(wide, size=grid, mode="bicubic", align_corners=False)
    return torch.cat([vectors[:prefix], placed[0].flatten(1).T.to(vectors.dtype)])


def init_truncated_normal(weight: Tensor, deviation: float) -> None:
    """Draw a weight from a normal distribution, cut at two standard deviations."""
    if deviation == 0.0:
        nn.init.zeros_(weight)
    else:
        nn.init.trunc_normal_(weight, std=deviation, a=-2.0 * deviation, b=2.0 * deviation)
