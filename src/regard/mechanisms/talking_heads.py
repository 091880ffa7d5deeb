"""Talking-heads attention: scores are mixed across heads before the softmax, and weights after it.

    s_h = scale * q_h . k_h     l_g = sum_h s_h P_hg + bias_g     u_g = softmax(l_g)     scale = 1/sqrt(head_dim)
    w_f = sum_g u_g R_gf        o_f = sum_j w_fj v_fj

Shazeer et al. 2020, "Talking-heads attention", section 4, with as many heads of scores, of softmaxes and of values. P
and R are trained: ``score_mixing`` and ``weight_mixing`` (heads, heads), from a head (row) to a head (column). With
two identities, near which they start, this is dot-product attention.

Output head f is linear in the values of head f, so its weights are w_f: of either sign, with any sum. They depend on
the queries and keys of all heads (``mixes_heads``), so a mask must be the same for all heads. A bias is added to the
mixed scores.

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim) -> (batch, heads, queries, value_dim),
in n^2 (d + heads) operations for each head. Exact, in plain torch, in tiles of queries: memory is linear in length,
also in training.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import check_weights
from regard.kernels.reference.attention import ScoreProblem, full_precision, make_dot_product_problem, mark_bad_rows
from regard.kernels.reference.nonfinite_isolation import IsolatedTokens, masked_softmax
from regard.kernels.reference.query_tiles import compute_in_tiles
from regard.kernels.request import Request
from regard.kernels.results import accumulation_dtype
from regard.mechanisms.base import Mechanism


@final
@explain_arguments
class TalkingHeads(Mechanism):
    """Talking-heads attention: R softmax(P scores), mixed across heads by trained matrices.

    ``score_mixing`` and ``weight_mixing`` (heads, heads) are P and R. Dropout drops weights before they are mixed.
    """

    weights_are: Literal["signed"] = "signed"
    mixes_heads: ClassVar[bool] = True

    def __init__(self, *, heads: int, head_dim: int, dropout: float = 0.0) -> None:
        super().__init__(heads=heads, head_dim=head_dim, dropout=dropout)
        check_weights(heads=heads, rows=heads)
        self.score_mixing = nn.Parameter(torch.eye(heads) + 0.1 * torch.randn(heads, heads))
        self.weight_mixing = nn.Parameter(torch.eye(heads) + 0.1 * torch.randn(heads, heads))

    @property
    def scale(self) -> float:
        """Factor of the dot products: 1/sqrt(head_dim)."""
        return float(self.head_dim**-0.5)

    def refuses(self, request: Request) -> str | None:
        """Refuse masks that differ between heads."""
        if request.mask is not None and (request.mask.heads or 1) > 1:
            return "each head uses the scores of all heads, so a mask must be the same for all heads"
        return None

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output in plain torch; half precision is computed in float32 and rounded once."""
        problem = self._make_problem(request)

        def compute_rows(rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows value_dim"]:
            with full_precision(problem):
                weights, empty, bad = self._mixed_weights(problem, rows, problem.dense_mask(rows), request.dropout)
                return problem.mix(weights, empty, rows).masked_fill(bad[..., None], torch.nan)

        return compute_in_tiles(problem, compute_rows, is_random=request.dropout > 0.0).to(request.query.dtype)

    def row_weights(self, request: Request, rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows keys"]:
        """Compute the mixed weights of some queries."""
        problem = self._make_problem(request)
        with full_precision(problem):
            allowed = problem.dense_mask(rows)
            weights, _, bad = self._mixed_weights(problem, rows, allowed)
            return mark_bad_rows(weights, allowed, bad)

    def _make_problem(self, request: Request) -> ScoreProblem:
        """Make the problem of the scores before P, from tokens that are isolated for all heads."""
        return replace(make_dot_product_problem(request), tokens=_isolate_heads(request))

    def _mixed_weights(
        self,
        problem: ScoreProblem,
        rows: Int[Tensor, " rows"],
        allowed: Bool[Tensor, "#batch #heads #rows #keys"] | None,
        dropout: float = 0.0,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the weights after R (batch, heads, rows, keys), and which rows (batch, heads, rows) are empty, and
        which affected by NaN or Inf.
        """
        scores = problem.score(problem.tokens.query[:, :, rows], problem.tokens.key)
        if allowed is not None:
            scores = scores.masked_fill(~allowed, 0.0)  # a hidden score may be infinite, also in the gradient of P
        overflow = ~scores.detach().isfinite().all(-1).all(1, keepdim=True)
        scores = _mix_heads(scores.masked_fill(overflow[..., None], 0.0), self.score_mixing)
        weights, empty, broken, _ = masked_softmax(problem.add_bias(scores, rows), allowed)
        if dropout > 0.0:
            weights = nn.functional.dropout(weights, dropout)
        weights = _mix_heads(weights, self.weight_mixing)
        if allowed is not None:
            weights = weights.masked_fill(~allowed, 0.0)  # 0 already; this stops gradients, which may be infinite
        bad = overflow | broken.any(1, keepdim=True) | problem.tokens.bad_rows(allowed, rows)
        return weights, empty, bad


def _mix_heads(
    pairs: Float[Tensor, "batch heads rows keys"], matrix: Float[Tensor, "heads heads"]
) -> Float[Tensor, "batch heads rows keys"]:
    """Compute the sum over heads h of pairs[h] matrix[h, g], for each head g."""
    batch, heads, rows, keys = pairs.shape
    mixed: Tensor = matrix.to(pairs).t() @ pairs.reshape(batch, heads, rows * keys)
    return mixed.view(batch, heads, rows, keys)


def _isolate_heads(request: Request) -> IsolatedTokens:
    """Replace non-finite tokens by zeros: a query or key affects its row in all heads, a value in its own head."""
    dtype, group = accumulation_dtype(request.query.dtype), request.group
    query = request.query.to(dtype)
    key, value = (side.to(dtype).repeat_interleave(group, dim=1) for side in (request.key, request.value))
    bad_query, bad_key, bad_value = (~side.isfinite().all(-1) for side in (query, key, value))
    return IsolatedTokens(
        query=query.masked_fill(bad_query[..., None], 0.0),
        key=key.masked_fill(bad_key[..., None], 0.0),
        value=value.masked_fill(bad_value[..., None], 0.0),
        bad_query=bad_query.any(1, keepdim=True).expand_as(bad_query),
        bad_key=bad_key.any(1, keepdim=True) | bad_value,
    )
