"""Attention with statistics of its weights, for any score function, in memory linear in length.

    lse_i        ln sum_j exp(s_ij)
    entropy_i    -sum_j w_ij ln w_ij                      in nats
    received_j   sum_i w_ij

A sink is one more term in the sums over j.

Queries are processed in tiles, each with all keys, so only the weights of one tile are in memory. In training the
backward pass computes each tile again, takes its gradients, and frees it. Only for second derivatives
(``create_graph=True``) and under torch.func are the weights of all tiles in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.contract import Observation
from regard.kernels.autograd_function import Function
from regard.kernels.reference.attention import ScoreProblem, compute_weights, full_precision, mark_bad_rows
from regard.kernels.reference.nonfinite_isolation import masked_softmax
from regard.kernels.reference.query_tiles import split_queries
from regard.kernels.tracing import any_requires_grad, in_functorch
from regard.positions.base import PairBias

ObserveResults: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""output, lse, entropy, top keys, top weights, sink weight (batch, heads, rows, 1 or, without sinks, 0), largest score,
each for some queries; and the weight each key received from them."""

_TOP_KEYS_INDEX, _MAX_SCORE_INDEX, _RECEIVED_INDEX = 3, 6, 7


def observe(problem: ScoreProblem, *, top: int, rows: Int[Tensor, " rows"] | None, dtype: torch.dtype) -> Observation:
    """Compute output, statistics, and the weights of the queries ``rows``, without a queries x keys matrix."""
    leaves = _grad_leaves(problem)
    columns: ObserveResults
    with full_precision(problem):
        if in_functorch():
            columns = _concatenate([_compute_tile(problem, rows, top) for rows in split_queries(problem)])
        elif any_requires_grad(*leaves):
            columns = _ObserveFunction.apply(problem, top, *leaves)
        else:
            columns = _compute_all_tiles(problem, top)
    output, lse, entropy, top_keys, top_weights, sink_weight, max_score, received = columns
    return Observation(
        output=output.to(dtype),
        lse=lse,
        entropy=entropy,
        received=received,
        top_keys=top_keys,
        top_weights=top_weights,
        rows=None if rows is None else compute_weights(problem, rows),
        sink_weight=None if problem.terms.sinks is None else sink_weight.squeeze(-1),
        max_score=max_score,
    )


@final
class _ObserveFunction(Function):
    """The results of all tiles, differentiable with respect to the leaves of the problem."""

    @staticmethod
    def forward(ctx: Any, problem: ScoreProblem, top: int, *leaves: Tensor) -> ObserveResults:
        """Compute the results, and free all intermediate tensors."""
        ctx.problem, ctx.top = problem, top
        ctx.save_for_backward(*leaves)  # so that autograd checks that none is changed in place meanwhile
        ctx.set_materialize_grads(False)
        columns = _compute_all_tiles(problem, top)
        ctx.mark_non_differentiable(columns[_TOP_KEYS_INDEX], columns[_MAX_SCORE_INDEX])
        return columns

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Compute each tile again and sum its gradients; keep the graphs if gradients will be differentiated again."""
        assert ctx.saved_tensors  # accessing them checks that none was changed in place since
        again = torch.is_grad_enabled()
        problem = ctx.problem if again else _detach_problem(ctx.problem)
        leaves = _grad_leaves(problem)
        differentiated = [index for index, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        sums: list[Tensor | None] = [None] * len(leaves)
        for rows in split_queries(problem):
            with torch.enable_grad(), full_precision(problem):
                part = _compute_tile(problem, rows, ctx.top)
            pairs = [
                (column, gradient if index == _RECEIVED_INDEX else gradient[:, :, rows])
                for index, (column, gradient) in enumerate(zip(part, gradients, strict=True))
                if gradient is not None and column.requires_grad
            ]
            if not pairs:
                continue
            found = torch.autograd.grad(
                [column for column, _ in pairs],
                [leaves[index] for index in differentiated],
                [gradient for _, gradient in pairs],
                allow_unused=True,
                create_graph=again,
            )
            for index, gradient in zip(differentiated, found, strict=True):
                if gradient is not None:
                    total = sums[index]
                    sums[index] = gradient if total is None else total + gradient if again else total.add_(gradient)
        return None, None, *sums


def _grad_leaves(problem: ScoreProblem) -> tuple[Tensor, ...]:
    """List all tensors that may need a gradient: tokens, bias, parameters of the score."""
    tokens, bias, sinks = problem.tokens, problem.terms.bias, problem.terms.sinks
    trained = tuple(bias.parameters()) if isinstance(bias, PairBias) else () if bias is None else (bias,)
    of_sinks = () if sinks is None else (sinks,)
    return (tokens.query, tokens.key, tokens.value, *trained, *of_sinks, *problem.score_parameters)


def _detach_problem(problem: ScoreProblem) -> ScoreProblem:
    """Detach the tokens and the tensors of the terms. Parameters stay: they are leaves already."""
    tokens = replace(
        problem.tokens,
        query=_detach(problem.tokens.query),
        key=_detach(problem.tokens.key),
        value=_detach(problem.tokens.value),
    )
    tensors: dict[str, Any] = {
        name: _detach(term) for name, term in problem.terms._asdict().items() if isinstance(term, Tensor)
    }
    return replace(problem, tokens=tokens, terms=problem.terms._replace(**tensors))


def _detach(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _compute_all_tiles(problem: ScoreProblem, top: int) -> ObserveResults:
    """Compute all tiles, and write their results into preallocated tensors.

    Results allocated between freed tiles would fragment memory: 7 GB instead of 1 at 16,384 tokens.
    """
    whole: ObserveResults | None = None
    tiles = split_queries(problem)
    done = 0
    for rows in tiles:
        part = _compute_tile(problem, rows, top)
        if whole is None:
            length = problem.frame.queries
            columns = [column.new_zeros(*column.shape[:2], length, *column.shape[3:]) for column in part[:-1]]
            output, lse, entropy, top_keys, top_weights, sink_weight, max_score = columns
            received = torch.zeros_like(part[-1])
            whole = (output, lse, entropy, top_keys, top_weights, sink_weight, max_score, received)
        for into, column in zip(whole[:-1], part[:-1], strict=True):
            into.narrow(2, done, rows.shape[0]).copy_(column)
        whole[-1].add_(part[-1])
        done += rows.shape[0]
    return _compute_tile(problem, tiles[0], top) if whole is None else whole


def _concatenate(parts: Sequence[ObserveResults]) -> ObserveResults:
    """Concatenate the results of tiles, without in-place writes, which torch.func does not support."""
    *by_query, received = zip(*parts, strict=True)
    output, lse, entropy, top_keys, top_weights, sinks, max_score = (torch.cat(column, dim=2) for column in by_query)
    return output, lse, entropy, top_keys, top_weights, sinks, max_score, torch.stack(received).sum(0)


def _compute_tile(problem: ScoreProblem, rows: Int[Tensor, " rows"], top: int) -> ObserveResults:
    """Compute the results of some queries."""
    allowed = problem.dense_mask(rows)
    scores = problem.scores(rows)
    sinks = problem.sinks_of(rows)
    weights, empty, broken, sink_weight = masked_softmax(scores, allowed, sinks)
    bad = broken | problem.tokens.bad_rows(allowed, rows)
    hidden = bad[..., None] if allowed is None else bad[..., None] | ~allowed
    scores = scores.masked_fill(hidden, -torch.inf)
    # H = -sum w ln w; a weight of 0 adds 0, and filling 1 under ln keeps its gradient finite.
    entropy = (weights * -weights.masked_fill(weights == 0, 1.0).log()).sum(-1)
    lse = _logsumexp(scores)
    if sinks is None or sink_weight is None:
        sink_weight = weights[..., :0]
    else:
        entropy = entropy - sink_weight * sink_weight.masked_fill(sink_weight == 0, 1.0).log()
        not_a_sum = empty | bad
        sinks = sinks.squeeze(-1).to(lse).expand_as(lse).masked_fill(not_a_sum, 0.0)
        lse = torch.logaddexp(lse.masked_fill(not_a_sum, 0.0), sinks).masked_fill(empty, -torch.inf)
        sink_weight = sink_weight[..., None].masked_fill(bad[..., None], torch.nan)
    best, top_keys = scores.topk(min(top, scores.shape[-1]), dim=-1)
    top_weights = weights.gather(-1, top_keys)
    top_keys = top_keys.masked_fill(best == -torch.inf, -1)
    return (
        problem.mix(weights, empty, rows).masked_fill(bad[..., None], torch.nan),
        lse.masked_fill(bad, torch.nan),
        entropy.masked_fill(bad, torch.nan),
        _pad(top_keys, top, -1),
        _pad(top_weights.masked_fill(bad[..., None], torch.nan), top, 0),
        sink_weight,
        _largest(scores.detach()).masked_fill(bad, torch.nan),
        mark_bad_rows(weights, allowed, bad).sum(2),
    )


def _largest(scores: Float[Tensor, "batch heads rows keys"]) -> Float[Tensor, "batch heads rows"]:
    return scores.amax(-1) if scores.shape[-1] else scores.new_full(scores.shape[:-1], -torch.inf)


def _logsumexp(scores: Float[Tensor, "batch heads rows keys"]) -> Float[Tensor, "batch heads rows"]:
    """Compute ln sum exp(s); -inf for a row of only -inf, whose gradient is then 0."""
    if scores.shape[-1] == 0:
        return scores.new_full(scores.shape[:-1], -torch.inf)
    empty = (scores == -torch.inf).all(-1)
    return scores.masked_fill(empty[..., None], 0.0).logsumexp(-1).masked_fill(empty, -torch.inf)


def _pad(tensor: Tensor, size: int, value: int) -> Tensor:
    """Pad to ``size`` columns with ``value``, if there are fewer keys than requested."""
    return torch.nn.functional.pad(tensor, (0, size - tensor.shape[-1]), value=value)
