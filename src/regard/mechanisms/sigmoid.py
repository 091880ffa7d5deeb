"""Sigmoid attention: each weight is a sigmoid of its own score, so keys do not compete for a query's attention.

    o_i = sum_j w_ij v_j        w_ij = sigmoid(scale * q_i . k_j + b_i)        scale = 1/sqrt(head_dim)

Ramapuram et al. 2025, "Theory, analysis, and best practices for sigmoid self-attention", section 2. The bias b = -log n
makes n weights of equal scores add up to about 1, as those of a softmax do. Here n is the number of keys that the query
may attend to, so that neither padding nor later tokens have an influence; ``score_bias`` is a fixed number instead,
such as -log of the length of the texts in training. Weights are 0 or more, and their sum is any number.

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim) -> (batch, heads, queries, value_dim),
in n^2 d operations. Plain torch, in tiles of queries: memory is linear in length, also in training.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import check_number
from regard.kernels.reference.attention import (
    ScoreProblem,
    full_precision,
    make_dot_product_problem,
    mark_bad_rows,
)
from regard.kernels.reference.nonfinite_isolation import MaskedWeights
from regard.kernels.reference.query_tiles import compute_in_tiles
from regard.kernels.request import Request
from regard.mechanisms.base import Mechanism


@final
@explain_arguments
class Sigmoid(Mechanism):
    """Sigmoid attention: sigmoid(scale * q . k + ``score_bias``).

    ``score_bias=None`` is -log of the number of keys that the query may attend to.
    """

    weights_are: ClassVar[Literal["non-negative"]] = "non-negative"

    def __init__(self, *, heads: int, head_dim: int, score_bias: float | None = None, dropout: float = 0.0) -> None:
        super().__init__(heads=heads, head_dim=head_dim, dropout=dropout)
        if score_bias is not None:
            check_number("score_bias", score_bias)
        self.score_bias = None if score_bias is None else float(score_bias)

    @property
    def scale(self) -> float:
        """Factor of the dot products: 1/sqrt(head_dim)."""
        return float(self.head_dim**-0.5)

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output in plain torch; half precision is computed in float32 and rounded once."""
        problem = make_dot_product_problem(request)

        def compute_rows(rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows value_dim"]:
            with full_precision(problem):
                allowed = problem.dense_mask(rows)
                weights, empty, broken = self._tile_weights(problem, rows, allowed)
                if request.dropout > 0.0:
                    weights = torch.nn.functional.dropout(weights, request.dropout)
                bad = broken | problem.tokens.bad_rows(allowed, rows)
                return problem.mix(weights, empty, rows).masked_fill(bad[..., None], torch.nan)

        return compute_in_tiles(problem, compute_rows, is_random=request.dropout > 0.0).to(request.query.dtype)

    def row_weights(self, request: Request, rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows keys"]:
        """Compute the sigmoids of the scores of some queries."""
        problem = make_dot_product_problem(request)
        with full_precision(problem):
            allowed = problem.dense_mask(rows)
            weights, _, broken = self._tile_weights(problem, rows, allowed)
            return mark_bad_rows(weights, allowed, broken | problem.tokens.bad_rows(allowed, rows))

    def _tile_weights(
        self,
        problem: ScoreProblem,
        rows: Int[Tensor, " rows"],
        allowed: Bool[Tensor, "#batch #heads #rows #keys"] | None,
    ) -> MaskedWeights:
        """Compute the weights of some queries."""
        scores = problem.scores(rows)
        added = _minus_log_visible(allowed, scores) if self.score_bias is None else self.score_bias
        return masked_sigmoid(scores, allowed, added)

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"{super().extra_repr()}, score_bias={self.score_bias}"


def masked_sigmoid(
    scores: Float[Tensor, "batch heads rows keys"],
    allowed: Bool[Tensor, "#batch #heads #rows #keys"] | None,
    added: Float[Tensor, "#batch #heads #rows 1"] | float,
) -> MaskedWeights:
    """Compute sigmoid(scores + added) of the allowed keys; 0 for forbidden ones."""
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    if scores.shape[-1] == 0:
        no_rows = scores.new_zeros(scores.shape[:-1], dtype=torch.bool)
        return MaskedWeights(scores, empty_rows=~no_rows, nonfinite_rows=no_rows)
    highest = scores.detach().amax(-1, keepdim=True)
    empty, broken = highest == -torch.inf, ~(highest < torch.inf)
    weights = (scores + added).masked_fill(broken, 0.0).sigmoid()
    # Forbidden weights are 0 already; setting them stops gradients, which a huge value can make infinite.
    weights = weights.masked_fill(empty if allowed is None else empty | ~allowed, 0.0)
    return MaskedWeights(weights, empty.squeeze(-1), broken.squeeze(-1))


def _minus_log_visible(
    allowed: Bool[Tensor, "#batch #heads #rows #keys"] | None, scores: Float[Tensor, "batch heads rows keys"]
) -> Float[Tensor, "#batch #heads #rows 1"] | float:
    """Compute -log of the number of keys that each query may attend to; 0 where there are none."""
    keys = scores.shape[-1]
    if allowed is None:
        return -math.log(max(keys, 1))
    return -allowed.expand(*allowed.shape[:3], keys).sum(-1, keepdim=True).clamp(min=1).to(scores).log()
