"""Sigmoid attention in plain torch, in tiles of queries: memory is linear in length, also in training.

    o_i = sum_j w_ij v_j        w_ij = sigmoid(s_ij + b_i), 0 where the mask forbids

Ramapuram et al. 2025, section 2. b_i is ``score_bias``, or -log of the number of keys that query i may attend to, if
that is None. Half precision is computed in float32 and rounded once, at the end.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.kernels.reference.attention import ScoreProblem, full_precision, make_dot_product_problem, mark_bad_rows
from regard.kernels.reference.nonfinite_isolation import MaskedWeights
from regard.kernels.reference.query_tiles import compute_in_tiles
from regard.kernels.request import Request


def compute_output(request: Request, score_bias: float | None) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute the output of every query, in the query's dtype."""
    problem = make_dot_product_problem(request)

    def compute_rows(rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows value_dim"]:
        with full_precision(problem):
            allowed = problem.dense_mask(rows)
            weights, empty, broken, _ = _tile_weights(problem, rows, allowed, score_bias)
            if request.terms.dropout > 0.0:
                weights = torch.nn.functional.dropout(weights, request.terms.dropout)
            bad = broken | problem.tokens.bad_rows(allowed, rows)
            return problem.mix(weights, empty, rows).masked_fill(bad[..., None], torch.nan)

    return compute_in_tiles(problem, compute_rows, is_random=request.terms.dropout > 0.0).to(request.query.dtype)


def compute_weights(
    request: Request, score_bias: float | None, rows: Int[Tensor, " rows"]
) -> Float[Tensor, "batch heads rows keys"]:
    """Compute the weights of some queries; NaN for the allowed keys of rows affected by NaN or Inf."""
    problem = make_dot_product_problem(request)
    with full_precision(problem):
        allowed = problem.dense_mask(rows)
        weights, _, broken, _ = _tile_weights(problem, rows, allowed, score_bias)
        return mark_bad_rows(weights, allowed, broken | problem.tokens.bad_rows(allowed, rows))


def _tile_weights(
    problem: ScoreProblem,
    rows: Int[Tensor, " rows"],
    allowed: Bool[Tensor, "#batch #heads #rows #keys"] | None,
    score_bias: float | None,
) -> MaskedWeights:
    """Compute the weights of some queries."""
    scores = problem.scores(rows)
    return masked_sigmoid(scores, allowed, minus_log_visible(allowed, scores) if score_bias is None else score_bias)


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


def minus_log_visible(
    allowed: Bool[Tensor, "#batch #heads #rows #keys"] | None, scores: Float[Tensor, "batch heads rows keys"]
) -> Float[Tensor, "#batch #heads #rows 1"] | float:
    """Compute -log of the number of keys that each query may attend to; 0 where there are none."""
    keys = scores.shape[-1]
    if allowed is None:
        return -math.log(max(keys, 1))
    return -allowed.expand(*allowed.shape[:3], keys).sum(-1, keepdim=True).clamp(min=1).to(scores).log()
