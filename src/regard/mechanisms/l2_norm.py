"""Tokens divided by their L2 norm, as the delta rule needs its keys."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

_EPSILON = 1e-6
"""Added to the squared norm, as in the code of the authors of Gated DeltaNet; a token of zeros stays 0."""


def l2_normalize(tokens: Float[Tensor, "batch heads length size"]) -> Float[Tensor, "batch heads length size"]:
    """Compute x / sqrt(|x|^2 + 10^-6)."""
    return tokens * (tokens.square().sum(-1, keepdim=True) + _EPSILON).rsqrt()
