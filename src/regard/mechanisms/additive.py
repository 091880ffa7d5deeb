"""Additive attention: a network with one hidden layer scores each (query, key) pair.

    score(q, k) = v . tanh(W_q q + W_k k)         W_q, W_k (inner, head_dim) and v (inner), one of each per head

Bahdanau et al. 2015, section 3.1 and appendix A.1.2 (there W_a and U_a).

Time is queries * keys * inner, with a tanh for each product: several times the time of a dot product. Memory is
queries + keys in the kernels, and queries * keys * inner in plain torch, in blocks of queries. It is no dot product, so
a softcap, sinks and caches of pages have no form here.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.mechanisms.mlp_score import MLPScoreMechanism, per_head_linear


@final
@explain_arguments
class Additive(MLPScoreMechanism):
    """Additive attention (Bahdanau et al. 2015). ``MLPScoreMechanism`` explains the options."""

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        dropout: float = 0.0,
        inner: int | None = None,
        impl: str = "auto",
    ) -> None:
        super().__init__(heads=heads, head_dim=head_dim, dropout=dropout, inner=inner, impl=impl)
        self.query_weight = nn.Parameter(torch.randn(heads, self.inner, head_dim) * head_dim**-0.5)
        self.key_weight = nn.Parameter(torch.randn(heads, self.inner, head_dim) * head_dim**-0.5)
        self.score_vector = nn.Parameter(torch.randn(heads, self.inner) * self.inner**-0.5)

    def project_query(
        self, query: Float[Tensor, "batch heads rows head_dim"]
    ) -> Float[Tensor, "batch heads rows inner"]:
        """Compute W_q q of every query, (batch, heads, length, inner)."""
        return per_head_linear(query, self.query_weight.to(query))

    def project_key(self, key: Float[Tensor, "batch heads keys head_dim"]) -> Float[Tensor, "batch heads keys inner"]:
        """Compute W_k k of every key, (batch, heads, length, inner)."""
        return per_head_linear(key, self.key_weight.to(key))

    @property
    def vector(self) -> Float[Tensor, "heads inner"]:
        """The score vector v (heads, inner)."""
        return self.score_vector
