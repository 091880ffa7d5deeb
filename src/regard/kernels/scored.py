"""Attention from any score function, in plain torch: the reference for all exact mechanisms.

    s_ij = score(q_i, k_j) + bias_ij                     -inf where the mask forbids
    w_ij = exp(s_ij) / sum_j exp(s_ij)                   0 where the mask forbids, or nothing is allowed
    o_i  = sum_j w_ij v_j

``attend`` holds all the weights at once; ``observe`` takes the queries in tiles, so its memory is linear in
length, also in training, where each tile is computed again in the backward pass. Both hold the promises of
``nonfinite``. Half precision is computed in float32 and rounded once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from regard.contract import Frame, Observation
from regard.kernels.nonfinite import Isolated, isolate, masked_softmax
from regard.kernels.request import Bias, Request
from regard.masks.base import Mask
from regard.positions.base import PairBias

Score: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(query (batch, heads, rows, head_dim), key (batch, heads, keys, head_dim)) -> scores (batch, heads, rows, keys)."""

_TILE_BYTES = 4 << 20  # one tile of scores: small enough for a CPU's last cache, large enough to keep torch busy


@dataclass(frozen=True)
class Problem:
    """A request in the form this file computes: finite, in one dtype, keys expanded to all heads."""

    score: Score
    tokens: Isolated
    frame: Frame
    mask: Mask | None
    bias: Bias | None
    scale: float
    trained: tuple[Tensor, ...] = ()  # parameters of the score, if it has any

    def allowed(self, rows: Int[Tensor, " rows"]) -> Bool[Tensor, "#batch #heads #rows #keys"] | None:
        """The mask for some queries."""
        if self.mask is None:
            return None
        return self.mask.dense(self.frame.queries, self.frame.keys, device=self.tokens.query.device, rows=rows)

    def scores(self, rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows keys"]:
        """Score plus bias for some queries, before the mask."""
        query = self.tokens.query[:, :, rows]
        scores = self.score(query, self.tokens.key)
        if isinstance(self.bias, PairBias):
            return scores + self.bias.scores(query, self.frame, rows, self.scale)
        if self.bias is not None:
            return scores + (self.bias if self.bias.shape[-2] == 1 else self.bias[..., rows, :]).to(scores)
        return scores

    def mix(self, weights: Float[Tensor, "batch heads rows keys"], rows: Int[Tensor, " rows"]) -> Tensor:
        """The weighted sum of values, with the bias's value term if it has one."""
        output = weights @ self.tokens.value
        if isinstance(self.bias, PairBias):
            term = self.bias.values(weights, self.frame, rows)
            output = output if term is None else output + term
        return output


def pose(
    score: Score,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | None,
    bias: Bias | None,
    scale: float = 1.0,
    trained: tuple[Tensor, ...] = (),
) -> Problem:
    """Bring tensors of the contract into the form of a Problem.

    ``scale`` is what a bias may need to know; ``trained`` are the parameters inside ``score``.
    """
    wide = torch.float32 if query.dtype in (torch.float16, torch.bfloat16) else query.dtype
    group = query.shape[1] // key.shape[1]
    key, value = (tensor.to(wide).repeat_interleave(group, dim=1) for tensor in (key, value))
    tokens = isolate(query.to(wide), key, value)
    return Problem(score, tokens, Frame(query.shape[2], key.shape[2]), mask, bias, scale, trained)


def pose_dot_product(request: Request) -> Problem:
    """Scaled dot-product attention, as a Problem: score(q, k) = scale * q . k."""

    def score(query: Tensor, key: Tensor) -> Tensor:
        return (query * request.scale) @ key.transpose(-2, -1)

    query, key, value = request.query, request.key, request.value
    return pose(score, query, key, value, mask=request.mask, bias=request.bias, scale=request.scale)


def attend(
    problem: Problem, *, dropout: float = 0.0, dtype: torch.dtype, rows: Int[Tensor, " rows"] | None = None
) -> Float[Tensor, "batch heads rows value_dim"]:
    """The output for some queries (default: all), in ``dtype``.

    ``dropout`` zeroes weights with that probability and scales up the others.
    """
    rows = problem.frame.all_rows(problem.tokens.query.device) if rows is None else rows
    allowed = problem.allowed(rows)
    weights, broken = masked_softmax(problem.scores(rows), allowed)
    if dropout > 0.0:
        weights = torch.nn.functional.dropout(weights, dropout)
    output = problem.mix(weights, rows)
    bad = broken | problem.tokens.bad_rows(allowed, rows)
    return output.masked_fill(bad[..., None], torch.nan).to(dtype)


def weights_of(problem: Problem, rows: Int[Tensor, " rows"] | None = None) -> Float[Tensor, "batch heads rows keys"]:
    """The weights of some queries (default: all), NaN in the allowed keys of rows that may see one."""
    rows = problem.frame.all_rows(problem.tokens.query.device) if rows is None else rows
    allowed = problem.allowed(rows)
    weights, broken = masked_softmax(problem.scores(rows), allowed)
    return _poison(weights, allowed, broken | problem.tokens.bad_rows(allowed, rows))


def observe(problem: Problem, *, top: int, rows: Int[Tensor, " rows"] | None, dtype: torch.dtype) -> Observation:
    """Output, statistics, and the weights of the queries ``rows``; nothing of size queries x keys is held."""
    tiles = problem.frame.all_rows(problem.tokens.query.device).split(_tile_height(problem))
    columns = _learning(problem, tiles, top) if _needs_gradient(problem) else _at_rest(problem, tiles, top)
    output, lse, entropy, top_keys, top_weights, received = columns
    return Observation(
        output=output.to(dtype),
        lse=lse,
        entropy=entropy,
        received=received,
        top_keys=top_keys,
        top_weights=top_weights,
        rows=None if rows is None else weights_of(problem, rows),
    )


Columns: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""output, lse, entropy, top keys, top weights, each for some queries; and what each key received from them."""


def _at_rest(problem: Problem, tiles: Sequence[Tensor], top: int) -> Columns:
    """All tiles, without gradients, written into tensors made beforehand.

    Results kept beside the freed tiles would leave holes that the allocator cannot use again: 7 GB instead of
    1 at 16,384 tokens.
    """
    whole: Columns | None = None
    for rows in tiles:
        part = _observe_tile(problem, rows, top)
        if whole is None:
            length = problem.frame.queries
            made = [column.new_zeros(*column.shape[:2], length, *column.shape[3:]) for column in part[:-1]]
            whole = (made[0], made[1], made[2], made[3], made[4], torch.zeros_like(part[-1]))
        for into, column in zip(whole[:-1], part[:-1], strict=True):
            into[:, :, rows[0] : rows[0] + rows.shape[0]] = column
        whole[-1].add_(part[-1])
    return _observe_tile(problem, tiles[0], top) if whole is None else whole


def _learning(problem: Problem, tiles: Sequence[Tensor], top: int) -> Columns:
    """All tiles, each computed again in the backward pass, so that only one tile's weights live at a time."""
    parts = [
        checkpoint(_observe_tile, problem, rows, top, use_reentrant=False, preserve_rng_state=False) for rows in tiles
    ]
    columns = [torch.cat(column, dim=2) for column in list(zip(*parts, strict=True))[:-1]]
    received = torch.stack([part[-1] for part in parts]).sum(0)
    return columns[0], columns[1], columns[2], columns[3], columns[4], received


def _tile_height(problem: Problem) -> int:
    """Queries in a tile."""
    batch, heads = problem.tokens.query.shape[:2]
    return max(1, _TILE_BYTES // max(1, batch * heads * problem.frame.keys * problem.tokens.query.element_size()))


def _needs_gradient(problem: Problem) -> bool:
    tokens = (problem.tokens.query, problem.tokens.key, problem.tokens.value)
    bias = problem.bias
    trained = tuple(bias.parameters()) if isinstance(bias, PairBias) else () if bias is None else (bias,)
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*tokens, *trained, *problem.trained))


def _observe_tile(problem: Problem, rows: Tensor, top: int) -> Columns:
    """The columns for some queries."""
    allowed = problem.allowed(rows)
    scores = problem.scores(rows)
    weights, broken = masked_softmax(scores, allowed)
    bad = broken | problem.tokens.bad_rows(allowed, rows)
    hidden = bad[..., None] if allowed is None else bad[..., None] | ~allowed
    scores = scores.masked_fill(hidden, -torch.inf)
    lse = _logsumexp(scores)
    # H = -sum w ln w; where w is 0, so is its share, and the 1 keeps its gradient finite too.
    entropy = -(weights * weights.masked_fill(weights == 0, 1.0).log()).sum(-1)
    count = min(top, scores.shape[-1])
    best, top_keys = scores.topk(count, dim=-1)
    top_weights = weights.gather(-1, top_keys)
    top_keys = top_keys.masked_fill(best == -torch.inf, -1)
    return (
        problem.mix(weights, rows).masked_fill(bad[..., None], torch.nan),
        lse.masked_fill(bad, torch.nan),
        entropy.masked_fill(bad, torch.nan),
        _pad(top_keys, top, -1),
        _pad(top_weights.masked_fill(bad[..., None], torch.nan), top, 0),
        _poison(weights, allowed, bad).sum(2),
    )


def _logsumexp(scores: Float[Tensor, "batch heads rows keys"]) -> Float[Tensor, "batch heads rows"]:
    """ln sum exp(s), -inf for a row of -inf only, whose gradient is then 0."""
    if scores.shape[-1] == 0:
        return scores.new_full(scores.shape[:-1], -torch.inf)
    empty = (scores == -torch.inf).all(-1)
    return scores.masked_fill(empty[..., None], 0.0).logsumexp(-1).masked_fill(empty, -torch.inf)


def _poison(weights: Tensor, allowed: Tensor | None, bad: Tensor) -> Tensor:
    """NaN in the allowed keys of bad rows."""
    rows = bad[..., None]
    return weights.masked_fill(rows if allowed is None else rows & allowed, torch.nan)


def _pad(tensor: Tensor, size: int, value: int) -> Tensor:
    """Fill up to ``size`` columns, where there are fewer keys than were asked for."""
    return torch.nn.functional.pad(tensor, (0, size - tensor.shape[-1]), value=value)
