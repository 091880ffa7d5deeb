"""Attention with the three scores of Luong et al.: dot, general and concat.

    luong_dot      score(q, k) = q . k
    luong_general  score(q, k) = q . W k                        W (head_dim, head_dim), one per head
    luong_concat   score(q, k) = v . tanh(W [q ; k])            W (inner, 2 head_dim), v (inner), one of each per head

Luong et al. 2015, section 3.1, after equation 7. None is scaled. W [q ; k] is computed as W_1 q + W_2 k once per token.

Time is queries * keys * head_dim for dot and general, which are dot products with other queries, and
queries * keys * inner, with a tanh for each product, for concat, which has the limits of ``additive``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import check_weights
from regard.kernels.request import Request
from regard.kernels.select import attend
from regard.mechanisms.mlp_score import MLPScoreMechanism, per_head_linear
from regard.mechanisms.scored_mechanism import ScoredMechanism
from regard.mechanisms.steps import Steps
from regard.positions.base import DistanceBias, PairBias


@final
@explain_arguments
class LuongDot(ScoredMechanism):
    """Unscaled dot-product attention; every implementation of ``regard.attention`` supports it."""

    def score(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
    ) -> Float[Tensor, "batch heads rows keys"]:
        """Compute q . k of every pair, (batch, heads, rows, keys)."""
        return query @ key.transpose(-2, -1)

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output with the implementation that "auto" picks."""
        return attend("attention", "auto", request)

    def steps(self, request: Request) -> Steps:
        """Return the inputs of the dot product."""
        return Steps(request.query, request.repeated_key, request.mask)


@final
@explain_arguments
class LuongGeneral(ScoredMechanism):
    """Bilinear attention: dot product through a trained matrix W; equal to luong_dot of the queries q W."""

    traits = replace(ScoredMechanism.traits, takes_rotation=False)

    def __init__(self, *, heads: int, head_dim: int, dropout: float = 0.0) -> None:
        super().__init__(heads=heads, head_dim=head_dim, dropout=dropout)
        check_weights(heads=heads, rows=head_dim, head_dim=head_dim)
        self.weight = nn.Parameter(torch.randn(heads, head_dim, head_dim) * head_dim**-0.5)

    def score(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
    ) -> Float[Tensor, "batch heads rows keys"]:
        """Compute q W . k; NaN if q W overflowed. Such rows are replaced by 0 before the product, else 0 * inf would
        make gradients NaN.
        """
        projected = per_head_linear(query, self.weight.to(query).mT)
        bad = ~projected.detach().isfinite().all(-1, keepdim=True)
        return (projected.masked_fill(bad, 0.0) @ key.transpose(-2, -1)).masked_fill(bad, torch.nan)

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output with the implementation that "auto" picks."""
        if isinstance(request.bias, PairBias) and not isinstance(request.bias, DistanceBias):
            return super().attend(request)  # such a bias depends on q, and not on q W
        query = request.query
        # Non-finite queries are replaced by 0 before the product: they would make the weight's gradient NaN.
        bad = ~query.isfinite().all(-1, keepdim=True)
        projected = (
            per_head_linear(query.masked_fill(bad, 0.0), self.weight.to(query).mT).masked_fill(bad, torch.nan).to(query)
        )
        request = request.replace(query=projected)
        return attend("attention", "auto", request)

    def steps(self, request: Request) -> Steps:
        """Return the inputs of the dot product, the query after its projection."""
        query = per_head_linear(request.query, self.weight.to(request.query).mT)
        return Steps(query, request.repeated_key, request.mask)


@final
@explain_arguments
class LuongConcat(MLPScoreMechanism):
    """Concat attention: a hidden layer over query and key side by side. ``MLPScoreMechanism`` explains the options."""

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
        self.weight = nn.Parameter(torch.randn(heads, self.inner, 2 * head_dim) * (2 * head_dim) ** -0.5)
        self.score_vector = nn.Parameter(torch.randn(heads, self.inner) * self.inner**-0.5)

    def project_query(
        self, query: Float[Tensor, "batch heads rows head_dim"]
    ) -> Float[Tensor, "batch heads rows inner"]:
        """Compute W_1 q of every query, (batch, heads, length, inner)."""
        return per_head_linear(query, self.weight[..., : self.head_dim].to(query))

    def project_key(self, key: Float[Tensor, "batch heads keys head_dim"]) -> Float[Tensor, "batch heads keys inner"]:
        """Compute W_2 k of every key, (batch, heads, length, inner)."""
        return per_head_linear(key, self.weight[..., self.head_dim :].to(key))

    @property
    def vector(self) -> Float[Tensor, "heads inner"]:
        """The score vector v (heads, inner)."""
        return self.score_vector
