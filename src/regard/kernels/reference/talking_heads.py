"""Talking-heads attention in plain torch, in tiles of queries: memory is linear in length, also in training.

    s_h = scale * q_h . k_h     l_g = sum_h s_h P_hg + bias_g     u_g = softmax(l_g)
    w_f = sum_g u_g R_gf        o_f = sum_j w_fj v_fj

Shazeer et al. 2020, section 4. Half precision is computed in float32 and rounded once, at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.kernels.reference.attention import ScoreProblem, full_precision, make_dot_product_problem, mark_bad_rows
from regard.kernels.reference.nonfinite_isolation import IsolatedTokens, masked_softmax
from regard.kernels.reference.query_tiles import compute_in_tiles
from regard.kernels.request import Request
from regard.kernels.results import accumulation_dtype


@final
@dataclass(frozen=True)
class HeadMixing:
    """The trained matrices (heads, heads), P of scores and R of weights: from a head (row) to a head (column)."""

    scores: Float[Tensor, "heads heads"]
    weights: Float[Tensor, "heads heads"]


def compute_output(request: Request, mixing: HeadMixing) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute the output of every query, in the query's dtype."""
    problem = _make_problem(request)

    def compute_rows(rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows value_dim"]:
        with full_precision(problem):
            weights, empty, bad = _mixed_weights(problem, mixing, rows, problem.dense_mask(rows), request.terms.dropout)
            return problem.mix(weights, empty, rows).masked_fill(bad[..., None], torch.nan)

    return compute_in_tiles(problem, compute_rows, is_random=request.terms.dropout > 0.0).to(request.query.dtype)


def compute_weights(
    request: Request, mixing: HeadMixing, rows: Int[Tensor, " rows"]
) -> Float[Tensor, "batch heads rows keys"]:
    """Compute the mixed weights of some queries; NaN for the allowed keys of rows affected by NaN or Inf."""
    problem = _make_problem(request)
    with full_precision(problem):
        allowed = problem.dense_mask(rows)
        weights, _, bad = _mixed_weights(problem, mixing, rows, allowed)
        return mark_bad_rows(weights, allowed, bad)


def _make_problem(request: Request) -> ScoreProblem:
    """Make the problem of the scores before P, from tokens that are isolated for all heads."""
    return replace(make_dot_product_problem(request), tokens=_isolate_heads(request.with_rebalanced_scale))


def _mixed_weights(
    problem: ScoreProblem,
    mixing: HeadMixing,
    rows: Int[Tensor, " rows"],
    allowed: Bool[Tensor, "#batch #heads #rows #keys"] | None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the weights after R (batch, heads, rows, keys), and which rows (batch, heads, rows) are empty, and which
    affected by NaN or Inf.
    """
    scores = problem.score(problem.tokens.query[:, :, rows], problem.tokens.key)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, 0.0)  # a hidden score may be infinite, also in the gradient of P
    overflow = ~scores.detach().isfinite().all(-1).all(1, keepdim=True)
    scores = _mix_heads(scores.masked_fill(overflow[..., None], 0.0), mixing.scores)
    weights, empty, broken, _ = masked_softmax(problem.add_bias(scores, rows), allowed)
    if dropout > 0.0:
        weights = torch.nn.functional.dropout(weights, dropout)
    weights = _mix_heads(weights, mixing.weights)
    if allowed is not None:
        weights = weights.masked_fill(~allowed, 0.0)  # 0 already; this stops gradients, which may be infinite
    # A bias of -inf may leave one softmax without keys; a head of values is empty only if all of them are.
    empty = empty.all(1, keepdim=True).expand_as(empty)
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
