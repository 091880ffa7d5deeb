"""Linear layer with a separate matrix for each head: y_h = W_h x_h.

tokens (batch, heads, length, in), weight (heads, out, in) -> (batch, heads, length, out).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def per_head_linear(
    tokens: Float[Tensor, "batch heads length size"], weight: Float[Tensor, "heads out size"]
) -> Float[Tensor, "batch heads length out"]:
    """Multiply every token by the matrix of its head.

    ``tokens @ weight.mT`` would repeat the matrices for each batch entry, and hold as many copies of their gradients.
    """
    return torch.einsum("bhls,hos->bhlo", tokens, weight)
