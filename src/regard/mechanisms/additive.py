"""Additive attention: a small network with one hidden layer scores each pair.

    score(q, k) = v . tanh(W_q q + W_k k)         W_q, W_k (inner, head_dim) and v (inner), one of each a head

Bahdanau et al. 2015, section 3.1 and appendix A.1.2 (there W_a and U_a).
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import check_count
from regard.mechanisms.base import ScoredMechanism


@final
class Additive(ScoredMechanism):
    """Bahdanau's score. ``inner`` is the size of the hidden layer; None takes head_dim."""

    def __init__(self, *, heads: int, head_dim: int, dropout: float = 0.0, inner: int | None = None) -> None:
        super().__init__(heads=heads, head_dim=head_dim, dropout=dropout)
        inner = head_dim if inner is None else inner
        check_count("inner", inner)
        self.query_weight = nn.Parameter(torch.randn(heads, inner, head_dim) * head_dim**-0.5)
        self.key_weight = nn.Parameter(torch.randn(heads, inner, head_dim) * head_dim**-0.5)
        self.score_vector = nn.Parameter(torch.randn(heads, inner) * inner**-0.5)

    def score(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
    ) -> Float[Tensor, "batch heads rows keys"]:
        """v . tanh(W_q q + W_k k)."""
        of_query = query @ self.query_weight.to(query).transpose(1, 2)
        of_key = key @ self.key_weight.to(key).transpose(1, 2)
        return additive_score(of_query, of_key, self.score_vector.to(query))


def additive_score(
    of_query: Float[Tensor, "batch heads rows inner"],
    of_key: Float[Tensor, "batch heads keys inner"],
    score_vector: Float[Tensor, "heads inner"],
) -> Float[Tensor, "batch heads rows keys"]:
    """v . tanh(of_query_i + of_key_j) for every pair; NaN where a projected token overflowed.

    Those are kept out of the tanh: at NaN its gradient is NaN, and would be where the mask forbids the pair too.
    """
    wild_query, wild_key = (~projected.isfinite().all(-1, keepdim=True) for projected in (of_query, of_key))
    of_query, of_key = of_query.masked_fill(wild_query, 0.0), of_key.masked_fill(wild_key, 0.0)
    hidden = torch.tanh(of_query[:, :, :, None, :] + of_key[:, :, None, :, :])
    scores = (hidden @ score_vector[None, :, None, :, None]).squeeze(-1)
    return scores.masked_fill(wild_query | wild_key.transpose(-2, -1), torch.nan)
