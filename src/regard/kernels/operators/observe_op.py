"""regard::observe, the native kernel for statistics, as a torch operator: schema, fake, autograd.

    entropy_i   -sum_j w_ij ln w_ij
    received_j  sum_i w_ij
    top, rows   weights w_ij: the largest of each query, and the weights of all keys for some queries
    sink        the weight of the sink, if there is one; it is one more weight in the sums over j of the entropy

All are functions of the weights, so the backward pass sums the terms that they add to the gradient of a weight, in one
pass of the kernel (Dao et al. 2022, algorithm 4, has the term of the output only):

    D_ij  = dO_i . v_j - dEntropy_i ln w_ij + dReceived_j + dTop_ij + dRows_ij
    dS_ij = w_ij (D_ij - sum_j w_ij D_ij + dlse_i)

The derivative of -w ln w is -(ln w + 1); the 1 is the same for all keys of a query, and cancels in the difference.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.contract import Observation
from regard.kernels.extension import native
from regard.kernels.operators.attention_op import (
    compute_gradients,
    empty_normalizer,
    empty_rounding_residual,
    rounding_residual_or_none,
    zero_values,
)
from regard.kernels.operators.kernel_arguments import SCHEMA, KernelArguments
from regard.kernels.operators.operator import Operator, load_saved, save_for_backward
from regard.kernels.results import accumulation_dtype, empty_token_major
from regard.kernels.tracing import any_requires_grad, is_eager

ObserveResults: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""output, lse, entropy, received, top keys, top weights, rows, sink weights, normalizer, rounding.

rows is empty if no rows were requested, and so are sink weights without sinks. The last two: ``attention_op.Results``.
"""

_TOP_KEYS_INDEX, _NORMALIZER_INDEX, _ROUNDING_INDEX = 4, 8, 9


def observe(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch key_heads keys head_dim"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    top: int,
    rows: Int[Tensor, " rows"] | None,
    terms: KernelArguments,
) -> Observation:
    """Compute output and statistics, through the torch operator if torch is tracing, else by the kernel directly."""
    arguments = (query, key, value, top, rows, *terms)
    if not is_eager(query, key, value, terms.bias, terms.sinks):
        columns: ObserveResults = OBSERVE.torch_op(*arguments)
    elif any_requires_grad(query, key, value, terms.bias, terms.table, terms.sinks):
        columns = OBSERVE.compute_with_grad(*arguments)
    else:
        columns = OBSERVE.compute(*arguments)
    output, lse, entropy, received, top_keys, top_weights, rows_weights, sink_weight, normalizer, _ = columns
    return Observation(
        output,
        lse,
        entropy,
        received,
        top_keys,
        top_weights,
        rows=None if rows is None else rows_weights,
        sink_weight=None if terms.sinks is None else sink_weight,
        max_score=_max_score(normalizer, lse, terms),
    )


def _max_score(normalizer: Tensor, lse: Tensor, terms: KernelArguments) -> Tensor:
    """Read the largest scores from the normalizer (``csrc/tiles/normalizer.h``).

    It has products of queries and keys, unless a bias or a cap makes a score more than a multiple of its product.
    """
    largest = normalizer.detach()[..., 0]
    if terms.scale != 0 and terms.bias is None and terms.table is None and terms.softcap is None:
        largest = largest * terms.scale
    return torch.where(lse.detach().isnan(), torch.nan, largest)


def _observe(query: Tensor, key: Tensor, value: Tensor, top: int, rows: Tensor | None, *terms: Any) -> ObserveResults:
    """Compute regard::observe on a CPU."""
    columns = _empty_results(query, key, value, top, rows, *terms)
    output, *statistics, rows_weights, sink_weight, normalizer, rounding = columns
    if value.shape[3] == 0:
        output, value = empty_token_major(query, query.shape[2], 1), zero_values(value)
    selected = (None, None) if rows is None else (rows, rows_weights)
    residual = rounding_residual_or_none(rounding)
    options = KernelArguments(*terms).to_kwargs()
    if "sinks" in options:
        options["sink_weight"] = sink_weight
    options |= {"normalizer": normalizer, "rounding": residual}
    native.observe(query, key, value, output, *statistics, *selected, **options)
    return columns


def _empty_results(
    query: Tensor, key: Tensor, value: Tensor, top: int, rows: Tensor | None, *terms: Any
) -> ObserveResults:
    """Allocate the results; also the fake kernel for tracing."""
    has_sinks = KernelArguments(*terms).sinks is not None
    batch, heads, queries, _ = query.shape
    keys, num_rows, dtype = key.shape[2], 0 if rows is None else rows.shape[0], accumulation_dtype(query.dtype)
    output = empty_token_major(query, queries, value.shape[3])
    lse = query.new_empty((batch, heads, queries), dtype=dtype)
    return (
        output,
        lse,
        query.new_empty((batch, heads, queries), dtype=dtype),
        query.new_empty((batch, heads, keys), dtype=dtype),
        query.new_empty((batch, heads, queries, top), dtype=torch.int64),
        query.new_empty((batch, heads, queries, top), dtype=dtype),
        query.new_empty((batch, heads, num_rows, keys), dtype=dtype),
        torch.empty_like(lse) if has_sinks else lse.new_empty(0),
        empty_normalizer(lse),
        empty_rounding_residual(output),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: ObserveResults) -> None:
    """Save the tensors that the backward pass needs."""
    save_for_backward(
        ctx, inputs, (output[0], output[_NORMALIZER_INDEX], output[_ROUNDING_INDEX], output[_TOP_KEYS_INDEX])
    )


def _differentiate(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    """Compute the gradient of each input of ``regard::observe``; None for inputs without one."""
    of_output, of_lse, of_entropy, of_received, _, of_top, of_rows, of_sink, _, _ = gradients
    if all(gradient is None for gradient in (of_output, of_lse, of_entropy, of_received, of_top, of_rows, of_sink)):
        return (None,) * len(ctx.non_tensors)
    (output, normalizer, rounding, top_keys), (query, key, value, top, rows, *terms) = load_saved(ctx)
    del top
    *needed, _, _ = ctx.needs_input_grad[:5]
    results = compute_gradients(
        of_output,
        of_lse,
        (output, normalizer, rounding),
        (query, key, value, *terms),
        (*needed, *ctx.needs_input_grad[5:]),
        None if of_entropy is None else -of_entropy,
        of_received,
        None if of_top is None else top_keys,
        of_top,
        rows,
        None if rows is None else of_rows,
        None if KernelArguments(*terms).sinks is None else of_sink,
    )
    return (*results[:3], None, None, *results[3:])


OBSERVE = Operator(
    "observe",
    f"(Tensor query, Tensor key, Tensor value, SymInt top, Tensor? rows, {SCHEMA}) -> (Tensor output, Tensor lse, "
    "Tensor entropy, Tensor received, Tensor top_keys, Tensor top_weights, Tensor rows_weights, Tensor sink_weight, "
    "Tensor normalizer, Tensor rounding_residual)",
    compute=_observe,
    fake=_empty_results,
    save=_save,
    differentiate=_differentiate,
    non_differentiable=(_TOP_KEYS_INDEX, _NORMALIZER_INDEX, _ROUNDING_INDEX),
)
