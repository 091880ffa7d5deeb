"""Keys divided by the root of their mean square, in plain torch.

    k / sqrt(mean(k^2) + 10^-6)

Kitaev et al. 2020 (Reformer), as in the authors' code: attention with shared queries and keys.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.kernels.same_layout import copy_if_overlapping, replace_where, zero_where
from regard.tensors import has_values

EPSILON = 1e-6
_MAX_NORM = {torch.float32: 2.0**60, torch.float64: 2.0**500}
"""Keys with a larger norm are scaled down, since the square of the norm would overflow."""


def divide_keys(key: Float[Tensor, "batch heads keys head_dim"]) -> Float[Tensor, "batch heads keys head_dim"]:
    """Divide keys by the root of their mean square; NaN for keys that are not finite, without a gradient.

    Keys of a large norm are scaled down first, so that their squares are finite. The change of a key depends on it
    alone, and where there is no such key, as usual, the norms are all that is computed beside the result.
    """
    if not (key.is_cpu and has_values(key)):
        return _divide_any(key, torch.linalg.vector_norm(key.detach(), dim=-1, keepdim=True) < _MAX_NORM[key.dtype])
    key = copy_if_overlapping(key)
    norm = torch.linalg.vector_norm(key, dim=-1, keepdim=True)
    unusual = ~(norm.detach() < _MAX_NORM[key.dtype])
    if not bool(unusual.any()):
        return _divide_by(key, norm)
    # The layout stays: torch sums the squares of another one in another order, which would change bits of usual keys.
    usual = zero_where(key, unusual)
    divided = _divide_by(usual, torch.linalg.vector_norm(usual, dim=-1, keepdim=True))
    return replace_where(divided, unusual, _divide_any(key, ~unusual))


def _divide_by(key: Tensor, norm: Float[Tensor, "batch heads keys 1"]) -> Tensor:
    """Divide keys whose norms have finite squares."""
    return key * torch.rsqrt(norm.square() / key.shape[-1] + EPSILON)


def _divide_any(key: Tensor, usual: Bool[Tensor, "batch heads keys 1"]) -> Tensor:
    """Divide keys of any norm; those that are not ``usual`` are scaled down first."""
    broken = ~key.detach().isfinite().all(-1, keepdim=True)
    key = key.masked_fill(broken, 0.0)
    factor = key.detach().abs().amax(-1, keepdim=True).clamp(min=1.0).masked_fill(usual, 1.0)
    key = key / factor
    norm = torch.linalg.vector_norm(key, dim=-1, keepdim=True)
    mean_square = norm.square() / key.shape[-1]
    return (key * torch.rsqrt(mean_square + EPSILON / factor.square())).masked_fill(broken, torch.nan)
