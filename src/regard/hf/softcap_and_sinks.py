"""Attention with capped scores and with attention sinks, in memory linear in length, forward and backward.

    s_ij = scale * q_i . k_j
    t_ij = c tanh(s_ij / c) + bias_ij                      c: softcap; without one, t_ij = s_ij + bias_ij
    w_ij = exp(t_ij) / (exp(z_i) + sum_j exp(t_ij))        z: sink, a logit of each head, or of each query
    o_i  = sum_j w_ij v_j

Softcap: Gemma Team 2024 (Gemma 2), section 2. Sinks: OpenAI 2025 (gpt-oss model card), section 2; an attention sink
takes weight, and its value is 0.

Plain torch, a few queries at a time (``kernels.reference.query_tiles``).
"""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.kernels.reference.attention import ScoreProblem, full_precision, make_problem, mark_bad_rows
from regard.kernels.reference.nonfinite_isolation import masked_softmax
from regard.kernels.reference.query_tiles import compute_in_tiles
from regard.kernels.request import Request
from regard.tensors import is_traced


def compute_output(
    request: Request, *, softcap: float | None, sinks: Float[Tensor, "#batch heads #queries 1"] | None
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute the output. ``sinks`` are logits, one for each head, or one for each query and head."""
    problem = _make_problem(request, softcap)
    compute_rows = partial(_compute_rows, problem, sinks, request.dropout, request.query.dtype)
    if is_traced():  # the number of tiles depends on lengths, which a trace does not fix
        return compute_rows(problem.frame.all_rows(request.device))
    return compute_in_tiles(problem, compute_rows, is_random=request.dropout > 0.0)


def compute_weights(
    request: Request, *, softcap: float | None, sinks: Float[Tensor, "#batch heads #queries 1"] | None
) -> Float[Tensor, "batch heads queries keys"]:
    """Compute all weights, before dropout. With sinks a row sums to less than 1."""
    problem = _make_problem(request, softcap)
    rows = problem.frame.all_rows(request.device)
    with full_precision(problem):
        weights, allowed, _, bad = _weigh(problem, sinks, rows)
        return mark_bad_rows(weights, allowed, bad)


def _make_problem(request: Request, softcap: float | None) -> ScoreProblem:
    request = request.with_rebalanced_scale

    def score(query: Tensor, key: Tensor) -> Tensor:
        scores = (query * request.scale) @ key.transpose(-2, -1)
        return scores if softcap is None else (scores / softcap).tanh() * softcap

    return make_problem(
        score, request.query, request.key, request.value, mask=request.mask, bias=request.bias, scale=request.scale
    )


def _compute_rows(
    problem: ScoreProblem, sinks: Tensor | None, dropout: float, dtype: torch.dtype, rows: Int[Tensor, " rows"]
) -> Float[Tensor, "batch heads rows value_dim"]:
    with full_precision(problem):
        weights, _, empty, bad = _weigh(problem, sinks, rows)
        if dropout > 0.0:
            weights = torch.nn.functional.dropout(weights, dropout)
        return problem.mix(weights, empty, rows).masked_fill(bad[..., None], torch.nan).to(dtype)


def _weigh(
    problem: ScoreProblem, sinks: Tensor | None, rows: Int[Tensor, " rows"]
) -> tuple[Tensor, Tensor | None, Bool[Tensor, "batch heads rows"], Bool[Tensor, "batch heads rows"]]:
    """Compute the weights of some queries; the dense mask, rows without keys, and rows that NaN or Inf affects."""
    allowed = problem.dense_mask(rows)
    scores = problem.scores(rows)
    if sinks is None:
        weights, empty, broken = masked_softmax(scores, allowed)
        return weights, allowed, empty, broken | problem.tokens.bad_rows(allowed, rows)
    sinks = sinks if sinks.shape[2] == 1 else sinks[:, :, rows]
    column = sinks.to(scores).expand(*scores.shape[:3], 1)
    # The sink is one more key that is always visible.
    visible = (
        None
        if allowed is None
        else torch.nn.functional.pad(allowed.expand(*allowed.shape[:3], scores.shape[3]), (0, 1), value=True)
    )
    weights, empty, broken = masked_softmax(torch.cat((scores, column), dim=-1), visible)
    empty = empty if allowed is None else empty | ~allowed.any(-1)
    return weights[..., :-1], allowed, empty, broken | problem.tokens.bad_rows(allowed, rows)
