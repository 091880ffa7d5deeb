"""Attention from any score function, in plain torch: the reference for all exact mechanisms.

    s_ij = score(q_i, k_j) + bias_ij                     -inf where the mask forbids
    w_ij = exp(s_ij) / sum_j exp(s_ij)                   0 where the mask forbids, or if no key is allowed
    o_i  = sum_j w_ij v_j

A sink z_i adds exp(z_i) to the sum.

``compute_output`` stores all weights at once; ``reference.observe`` processes the queries in tiles. Both isolate
non-finite tokens (``nonfinite_isolation``). Half precision is computed in float32 and rounded once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.contract import Frame
from regard.kernels.autocast import disable_autocast
from regard.kernels.reference.nonfinite_isolation import IsolatedTokens, isolate_nonfinite, masked_softmax
from regard.kernels.request import Request, Terms
from regard.positions.base import PairBias

Score: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(query (batch, heads, rows, head_dim), key (batch, heads, keys, head_dim)) -> scores (batch, heads, rows, keys)."""


@final
@dataclass(frozen=True)
class ScoreProblem:
    """A request in the form that this file computes: finite, in one dtype, keys repeated to all query heads."""

    score: Score
    tokens: IsolatedTokens
    frame: Frame
    terms: Terms  # the score has the scale and the softcap already
    score_parameters: tuple[Tensor, ...] = ()  # parameters of the score, if it has any

    def dense_mask(self, rows: Int[Tensor, " rows"]) -> Bool[Tensor, "#batch #heads #rows #keys"] | None:
        """Make the dense mask of some queries; None if there is no mask."""
        if self.terms.mask is None:
            return None
        return self.terms.mask.dense(self.frame.queries, self.frame.keys, device=self.tokens.query.device, rows=rows)

    def scores(self, rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows keys"]:
        """Compute score plus bias of some queries, before the mask."""
        return self.add_bias(self.score(self.tokens.query[:, :, rows], self.tokens.key), rows)

    def sinks_of(self, rows: Int[Tensor, " rows"]) -> Float[Tensor, "#batch #heads #rows 1"] | None:
        """Return the sinks of some queries; None if there are none."""
        sinks = self.terms.sinks
        return sinks if sinks is None or sinks.shape[2] == 1 else sinks[:, :, rows]

    def add_bias(
        self, scores: Float[Tensor, "batch heads rows keys"], rows: Int[Tensor, " rows"]
    ) -> Float[Tensor, "batch heads rows keys"]:
        """Add the bias of some queries to their scores."""
        bias = self.terms.bias
        if isinstance(bias, PairBias):
            return scores + bias.scores(self.tokens.query[:, :, rows], self.frame, rows, self.terms.scale)
        if bias is not None:
            return scores + (bias if bias.shape[-2] == 1 else bias[..., rows, :]).to(scores)
        return scores

    def mix(
        self,
        weights: Float[Tensor, "batch heads rows keys"],
        empty: Bool[Tensor, "batch heads rows"],
        rows: Int[Tensor, " rows"],
    ) -> Float[Tensor, "batch heads rows value_dim"]:
        """Compute the weighted sum of values, plus the bias's value term if it has one; 0 in ``empty`` rows."""
        output = weights @ self.tokens.value
        if isinstance(self.terms.bias, PairBias):
            term = self.terms.bias.values(weights, self.frame, rows)
            output = output if term is None else output + term
        # It is 0 there already; setting it stops gradients, since 0 times a gradient of NaN or Inf would be NaN.
        return output.masked_fill(empty[..., None], 0.0)


def make_problem(
    score: Score,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: Terms,
    score_parameters: tuple[Tensor, ...] = (),
) -> ScoreProblem:
    """Make a ScoreProblem from tensors with the shapes in ``contract``.

    ``score`` is what the terms add a bias to, and ``score_parameters`` are its parameters.
    """
    wide = torch.float32 if query.dtype in (torch.float16, torch.bfloat16) else query.dtype
    group = query.shape[1] // key.shape[1]
    key, value = (tensor.to(wide).repeat_interleave(group, dim=1) for tensor in (key, value))
    tokens = isolate_nonfinite(query.to(wide), key, value)
    return ScoreProblem(score, tokens, Frame(query.shape[2], key.shape[2]), terms, score_parameters)


def make_dot_product_problem(request: Request) -> ScoreProblem:
    """Make the ScoreProblem of scaled dot-product attention: score(q, k) = scale * q . k, capped with a softcap."""
    request = request.with_rebalanced_scale
    terms = request.terms

    def score(query: Tensor, key: Tensor) -> Tensor:
        return cap_scores((query * terms.scale) @ key.transpose(-2, -1), terms.softcap)

    return make_problem(score, request.query, request.key, request.value, terms)


def cap_scores(
    scores: Float[Tensor, "batch heads rows keys"], softcap: float | None
) -> Float[Tensor, "batch heads rows keys"]:
    """Compute softcap * tanh(scores / softcap); without a softcap, the scores themselves."""
    return scores if softcap is None else (scores / softcap).tanh() * softcap


def full_precision(problem: ScoreProblem) -> AbstractContextManager[object]:
    """Return a context manager that disables autocast, which would compute the scores in half precision."""
    return disable_autocast(problem.tokens.query.device)


def compute_output(
    problem: ScoreProblem, *, dropout: float = 0.0, dtype: torch.dtype, rows: Int[Tensor, " rows"] | None = None
) -> Float[Tensor, "batch heads rows value_dim"]:
    """Compute the output of some queries (default: all), in ``dtype``.

    ``dropout`` is the probability of setting a weight to 0; the others are scaled up.
    """
    rows = problem.frame.all_rows(problem.tokens.query.device) if rows is None else rows
    with full_precision(problem):
        allowed = problem.dense_mask(rows)
        weights, empty, broken, _ = masked_softmax(problem.scores(rows), allowed, problem.sinks_of(rows))
        if dropout > 0.0:
            weights = torch.nn.functional.dropout(weights, dropout)
        output = problem.mix(weights, empty, rows)
        bad = broken | problem.tokens.bad_rows(allowed, rows)
        return output.masked_fill(bad[..., None], torch.nan).to(dtype)


def compute_weights(
    problem: ScoreProblem, rows: Int[Tensor, " rows"] | None = None
) -> Float[Tensor, "batch heads rows keys"]:
    """Compute the weights of some queries (default: all); NaN for the allowed keys of rows affected by NaN or Inf."""
    rows = problem.frame.all_rows(problem.tokens.query.device) if rows is None else rows
    with full_precision(problem):
        allowed = problem.dense_mask(rows)
        weights, _, broken, _ = masked_softmax(problem.scores(rows), allowed, problem.sinks_of(rows))
        return mark_bad_rows(weights, allowed, broken | problem.tokens.bad_rows(allowed, rows))


def mark_bad_rows(weights: Tensor, allowed: Tensor | None, bad: Tensor) -> Tensor:
    """Set the weights of the allowed keys of bad rows to NaN."""
    rows = bad[..., None]
    return weights.masked_fill(rows if allowed is None else rows & allowed, torch.nan)
