"""Calls of the kernels of gradients on tensors of torch: what they need, and a result for each input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.kernels.results import empty_token_major
from regard.kernels.tile_programs import launch
from regard.kernels.tile_programs.bias_gradient import differentiate_bias, differentiate_table
from regard.kernels.tile_programs.kernel_arguments import Tokens, Upstream
from regard.kernels.tile_programs.key_gradient import differentiate_keys
from regard.kernels.tile_programs.launch import Output, Problem, as_tokens, run_row_statistics, tokens_of
from regard.kernels.tile_programs.query_gradient import differentiate_queries


@final
class Gradients(NamedTuple):
    """The gradients of the results of a call, with their shapes; None for those without one."""

    output: Tensor | None
    lse: Tensor | None
    entropy: Tensor | None
    received: Tensor | None
    top_weights: Tensor | None
    sink_weight: Tensor | None
    rows: Tensor | None


@final
class Saved(NamedTuple):
    """The results of the forward pass that gradients need; the output in float32."""

    output: Output
    entropy: Tensor
    top_keys: Tensor
    top_weights: Tensor
    rows: Tensor | None
    rows_weights: Tensor | None


@final
class InputGradients(NamedTuple):
    """The gradients of the inputs of a call, None for those that need none."""

    query: Tensor | None
    key: Tensor | None
    value: Tensor | None
    bias: Tensor | None
    table: Tensor | None
    sinks: Tensor | None


def differentiate(problem: Problem, saved: Saved, gradients: Gradients, needs_grad: Sequence[bool]) -> InputGradients:
    """Compute the gradients of query, key, value, bias, table and sinks, of those that ``needs_grad`` names."""
    upstream = _make_upstream(problem, saved, gradients)
    of_query, of_keys, of_bias, of_table = needs_grad[0], any(needs_grad[1:3]), needs_grad[3], needs_grad[4]
    key, value = _of_keys(problem, saved, upstream) if of_keys else (None, None)
    return InputGradients(
        _of_queries(problem, saved, upstream) if of_query else None,
        key,
        value,
        _of_bias(problem, saved, upstream) if of_bias else None,
        _of_table(problem, saved, upstream) if of_table else None,
        _of_sinks(problem, saved, gradients, upstream) if needs_grad[5] else None,
    )


def _make_upstream(problem: Problem, saved: Saved, gradients: Gradients) -> Upstream:
    """Compute delta; rows without weights have none that matters, since kernels leave them out."""
    output, received = saved.output, gradients.received
    delta = torch.zeros_like(output.lse)
    if gradients.output is not None:
        delta += (gradients.output.float() * output.output).sum(-1)
    if gradients.entropy is not None:
        delta += gradients.entropy * saved.entropy
    if received is not None:
        received = received.contiguous()
        mean = run_row_statistics(problem, output, has_entropy=False, column=received).mean
        assert mean is not None
        delta += mean
    if gradients.top_weights is not None:
        delta += (gradients.top_weights * saved.top_weights).sum(-1)
    if gradients.sink_weight is not None and output.sink_weight is not None:
        delta += gradients.sink_weight * output.sink_weight
    if gradients.lse is not None:
        delta -= gradients.lse
    of_rows, row_places = _of_rows(problem, saved, gradients.rows, delta)
    of_output, of_top = gradients.output, gradients.top_weights
    if of_output is not None and of_output.stride(3) != 1:
        of_output = of_output.contiguous()
    if of_top is not None:
        of_top = of_top.contiguous() if of_top.shape[3] > 0 else None
    return Upstream(
        None if of_output is None else as_tokens(of_output),
        delta,
        None if gradients.entropy is None else gradients.entropy.contiguous(),
        received,
        None if of_top is None else saved.top_keys,
        of_top,
        saved.top_keys.shape[3],
        of_rows,
        row_places,
    )


def _of_rows(
    problem: Problem, saved: Saved, gradient: Tensor | None, delta: Tensor
) -> tuple[Tokens | None, Int[Tensor, " queries"] | None]:
    """Return the gradients of the weights of asked rows, and the place of each query among them; add to ``delta``.

    A row that was asked for several times has the sum of its gradients.
    """
    rows, weights = saved.rows, saved.rows_weights
    if gradient is None or gradient.numel() == 0 or rows is None or weights is None:
        return None, None
    distinct, place = rows.unique(return_inverse=True)
    count = distinct.shape[0]
    if count < rows.shape[0]:
        first = torch.empty_like(distinct)
        first[place] = torch.arange(rows.shape[0], device=rows.device)  # equal rows have equal weights
        rows, weights = distinct, weights[:, :, first]
        # Unlike index_add_, this adds in one order on a GPU, so that bits repeat.
        sums = gradient.new_zeros(count, *gradient.shape[:2], gradient.shape[3])
        gradient = sums.index_put_((place,), gradient.movedim(2, 0), accumulate=True).movedim(0, 2)
    gradient = gradient.contiguous()
    delta[:, :, rows] += (gradient * weights).sum(-1)
    row_places = rows.new_full((problem.sizes.queries,), -1, dtype=torch.int32)
    row_places[rows] = torch.arange(count, dtype=torch.int32, device=rows.device)
    return as_tokens(gradient), row_places


def _of_queries(problem: Problem, saved: Saved, upstream: Upstream) -> Float[Tensor, "batch heads queries head_dim"]:
    sizes, query = problem.sizes, problem.inputs.query
    result = empty_token_major(query, sizes.queries, query.shape[3])
    launched = problem.launch.for_gradients
    launch.run(
        differentiate_queries,
        (sizes.queries, launched.blocks.rows, query.shape[0] * sizes.heads),
        (*tokens_of(problem), problem.rows, problem.terms, saved.output.normalizer, upstream, as_tokens(result), sizes),
        launched,
    )
    return result


def _of_keys(problem: Problem, saved: Saved, upstream: Upstream) -> tuple[Tensor, Tensor]:
    sizes, key, value = problem.sizes, problem.inputs.key, problem.inputs.value
    results = empty_token_major(key, sizes.keys, key.shape[3]), empty_token_major(value, sizes.keys, value.shape[3])
    of_keys = (saved.output.normalizer, upstream, *map(as_tokens, results), sizes)
    launched = problem.launch.for_gradients
    launch.run(
        differentiate_keys,
        (sizes.keys, launched.blocks.columns, key.shape[0] * key.shape[1]),
        (*tokens_of(problem), problem.columns, problem.terms, *of_keys),
        launched,
    )
    return results


def _of_bias(problem: Problem, saved: Saved, upstream: Upstream) -> Tensor:
    """Compute the gradient of a bias (batch or 1, heads or 1, queries or 1, keys or 1), in its dtype."""
    inputs, sizes, launched = problem.inputs, problem.sizes, problem.launch.for_gradients
    assert inputs.bias is not None
    result = torch.zeros(inputs.bias.shape, dtype=torch.float32, device=inputs.bias.device)
    batch, heads, queries, keys = result.shape
    parts = -(-queries // launched.blocks.rows) * -(-keys // launched.blocks.columns)
    codes = None if inputs.tiles is None else inputs.tiles.codes
    of_bias = (saved.output.normalizer, upstream, result, (batch, heads, queries, keys), inputs.query.shape[0], sizes)
    launch.run(
        differentiate_bias,
        (parts, 1, batch * heads),
        (*tokens_of(problem), problem.rows, codes, problem.terms, *of_bias),
        launched,
    )
    return result.to(inputs.bias.dtype)


def _of_table(problem: Problem, saved: Saved, upstream: Upstream) -> Tensor:
    """Compute the gradient of a table (heads or 1, distances): diagonals overlap by half, and are added up."""
    inputs, sizes, launched = problem.inputs, problem.sizes, problem.launch.for_tables
    side = launched.blocks.rows
    assert inputs.table is not None
    heads, distances = inputs.table.shape
    query_parts, key_parts = -(-sizes.queries // side), -(-sizes.keys // side)
    count = query_parts + key_parts - 1
    diagonals = inputs.table.new_zeros(heads, count, 2 * side)
    codes = None if inputs.tiles is None else inputs.tiles.codes
    of_table = (saved.output.normalizer, upstream, diagonals, heads, inputs.query.shape[0], sizes)
    launch.run(
        differentiate_table,
        (count, 1, heads),
        (*tokens_of(problem), problem.rows, codes, problem.terms, *of_table),
        launched,
    )
    sums = inputs.table.new_zeros(heads, (count + 1) * side)
    sums[:, :-side] += diagonals[..., :side].flatten(1)
    sums[:, side:] += diagonals[..., side:].flatten(1)
    first = 1 - query_parts * side  # key - query of the first number of sums
    start = -inputs.table_shift - first
    return sums[:, start : start + distances].contiguous()


def _of_sinks(problem: Problem, saved: Saved, gradients: Gradients, upstream: Upstream) -> Tensor:
    """Compute the gradient of the sinks (batch or 1, heads or 1, queries or 1, 1), in their dtype."""
    sinks, weight = problem.inputs.sinks, saved.output.sink_weight
    assert sinks is not None
    assert weight is not None
    of_weight = -upstream.delta
    if gradients.sink_weight is not None:
        of_weight = of_weight + gradients.sink_weight
    if gradients.entropy is not None:
        of_weight = of_weight - gradients.entropy * weight.log()
    has_weight = weight > 0  # neither NaN nor without keys
    of_sinks = torch.where(has_weight, weight * of_weight, 0.0)[..., None]
    return of_sinks.sum_to_size(sinks.shape).to(sinks.dtype)
