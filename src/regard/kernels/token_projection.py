"""``TokenProjection``: an input of a mechanism that is not computed yet, as tokens and the projection of them.

    input_h = x W_h^T + b_h        x (batch, length, width), W (heads * size, width), b (heads * size)

A linear function of such an input can be computed without it. For a few queries, q . (W x_j + b) = (W^T q) . x_j
+ q . b, and sum_j w_j (W x_j + b) = W (sum_j w_j x_j) + b sum_j w_j. The projection takes length * width * heads * size
products, the queries' products with the tokens themselves length * width * heads for each query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional


@final
@dataclass(frozen=True)
class TokenProjection:
    """An input (batch, heads, length, size) of a mechanism, as what it is computed from.

    Args:
        tokens: (batch, length, width).
        weight: (heads * size, width), of the same dtype.
        bias: (heads * size), or None.
        heads: number of heads.
    """

    tokens: Tensor
    weight: Tensor
    bias: Tensor | None
    heads: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Batch, heads, length and size of the input."""
        batch, length, _ = self.tokens.shape
        return batch, self.heads, length, self.weight.shape[0] // self.heads

    def compute(self) -> Float[Tensor, "batch heads length size"]:
        """Compute the input, as a linear layer of the tokens, divided into heads."""
        projected = functional.linear(self.tokens, self.weight, self.bias)
        return projected.unflatten(2, (self.heads, -1)).transpose(1, 2)

    @property
    def weight_of_heads(self) -> Float[Tensor, "heads size width"]:
        """The weight, divided into heads."""
        return self.weight.unflatten(0, (self.heads, -1))

    @property
    def bias_of_heads(self) -> Float[Tensor, "heads 1 size"] | None:
        """The bias, divided into heads, to be added to rows of any number; None without one."""
        return None if self.bias is None else self.bias.view(self.heads, 1, -1)
