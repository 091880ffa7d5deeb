"""Keys divided by the root of their mean square, in plain torch.

    k / sqrt(mean(k^2) + 10^-6)

Kitaev et al. 2020 (Reformer), as in the authors' code: attention with shared queries and keys.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from regard.tensors import has_values

EPSILON = 1e-6
_MAX_NORM = {torch.float32: 2.0**60, torch.float64: 2.0**500}
"""Keys with a larger norm are scaled down, since the square of the norm would overflow."""


def divide_keys(key: Float[Tensor, "batch heads keys head_dim"]) -> Float[Tensor, "batch heads keys head_dim"]:
    """Divide keys by the root of their mean square; NaN for keys that are not finite, without a gradient.

    Keys of a large norm are scaled down first, so that their squares are finite. What is done to a key depends on it
    alone, and where there is no such key, as usual, the norms are all that is computed beside the result.
    """
    norm, head_dim = torch.linalg.vector_norm(key, dim=-1, keepdim=True), key.shape[-1]
    usual = norm.detach() < _MAX_NORM[key.dtype]
    if usual.is_cpu and has_values(usual) and bool(usual.all()):
        return key * torch.rsqrt(norm.square() / head_dim + EPSILON)
    broken = ~key.detach().isfinite().all(-1, keepdim=True)
    key = key.masked_fill(broken, 0.0)
    factor = key.detach().abs().amax(-1, keepdim=True).clamp(min=1.0).masked_fill(usual, 1.0)
    key = key / factor
    norm = torch.linalg.vector_norm(key, dim=-1, keepdim=True)
    return (key * torch.rsqrt(norm.square() / head_dim + EPSILON / factor.square())).masked_fill(broken, torch.nan)
