"""regard::talking_heads and regard::talking_heads_backward: talking-heads attention, fused, as torch operators.

    w_f = sum_g softmax(sum_h s_h P_hg + bias_g) R_gf        output_f = sum_j w_fj value_fj

Shazeer et al. 2020, section 4. P and R are ``score_mixing`` and ``weight_mixing`` (heads, heads), in the dtype of sums.
``operators.kernel_arguments`` explains the other arguments: mask (the same for all heads), scale, bias, dropout. The
backward pass computes scores and weights again, so nothing of size queries x keys is stored. There is no second
derivative.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from regard.kernels.extension import native
from regard.kernels.operators.attention_op import empty_gradient, empty_normalizer, zero_values
from regard.kernels.operators.kernel_arguments import SCHEMA, KernelArguments
from regard.kernels.operators.operator import Operator, load_saved, refuse_second_derivative, save_for_backward
from regard.kernels.results import accumulation_dtype, empty_token_major
from regard.kernels.tracing import any_requires_grad, is_eager, is_eager_backward

Results: TypeAlias = tuple[Tensor, Tensor]
"""output, normalizer (batch, heads, queries, 2) of the mixed scores (``csrc/normalizer.h``), for the backward pass."""


def talking_heads_attention(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch key_heads keys head_dim"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    score_mixing: Float[Tensor, "heads heads"],
    weight_mixing: Float[Tensor, "heads heads"],
    terms: KernelArguments,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute the output, through the torch operator if torch is tracing, else by calling the kernel directly."""
    wide = accumulation_dtype(query.dtype)
    tensors = (query, key, value, score_mixing.to(wide), weight_mixing.to(wide))
    if not is_eager(*tensors, terms.bias):
        return TALKING_HEADS.torch_op(*tensors, *terms)[0]
    if any_requires_grad(*tensors, terms.bias, terms.table):
        return TALKING_HEADS.compute_with_grad(*tensors, *terms)[0]
    output = empty_token_major(query, query.shape[2], value.shape[3])
    _run_kernel(*tensors, output, None, terms)
    return output


def _talking_heads(
    query: Tensor, key: Tensor, value: Tensor, score_mixing: Tensor, weight_mixing: Tensor, *terms: Any
) -> Results:
    """Compute regard::talking_heads on a CPU."""
    output, normalizer = _empty_results(query, value)
    _run_kernel(query, key, value, score_mixing, weight_mixing, output, normalizer, KernelArguments(*terms))
    return output, normalizer


def _empty_results(query: Tensor, value: Tensor) -> Results:
    """Allocate the results."""
    of_rows = query.new_empty(query.shape[:3], dtype=accumulation_dtype(query.dtype))
    return empty_token_major(query, query.shape[2], value.shape[3]), empty_normalizer(of_rows)


def _run_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mixing: Tensor,
    weight_mixing: Tensor,
    output: Tensor,
    normalizer: Tensor | None,
    terms: KernelArguments,
) -> None:
    """Compute into ``output`` and ``normalizer``. The kernel is not called without queries, keys or results."""
    batch, heads, queries, value_dim = output.shape
    if batch == 0 or heads == 0 or queries == 0 or (value_dim == 0 and normalizer is None):
        return
    if key.shape[2] == 0:
        output.zero_()
        if normalizer is not None:
            normalizer.fill_(-torch.inf)
        return
    if value_dim == 0:
        output, value = empty_token_major(query, queries, 1), zero_values(value)
    native.talking_heads_forward(
        query, key, value, score_mixing, weight_mixing, output, normalizer=normalizer, **terms.to_kwargs()
    )


def _talking_heads_backward(
    grad_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mixing: Tensor,
    weight_mixing: Tensor,
    normalizer: Tensor,
    of_bias: bool,
    of_table: bool,
    *terms: Any,
) -> tuple[Tensor, ...]:
    """Compute regard::talking_heads_backward on a CPU. A bias may have another dtype than its gradient's sum."""
    gradients = _empty_gradients(query, key, value, score_mixing, weight_mixing, of_bias, of_table, *terms)
    if normalizer.numel() == 0 or key.shape[2] == 0:
        for gradient in gradients:
            gradient.zero_()
        return gradients
    grad_query, grad_key, grad_value, of_scores, of_weights, bias, table = gradients
    if value.shape[3] == 0:
        value, grad_output = zero_values(value), zero_values(grad_output)
        grad_value = torch.empty_like(value, memory_format=torch.contiguous_format)
    summed = bias.to(accumulation_dtype(query.dtype))
    native.talking_heads_backward(
        grad_output,
        query,
        key,
        value,
        score_mixing,
        weight_mixing,
        normalizer,
        grad_query,
        grad_key,
        grad_value,
        of_scores,
        of_weights,
        summed if of_bias else None,
        table if of_table else None,
        **KernelArguments(*terms).to_kwargs(),
    )
    if summed is not bias:
        bias.copy_(summed)
    return gradients


def _empty_gradients(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mixing: Tensor,
    weight_mixing: Tensor,
    of_bias: bool,
    of_table: bool,
    *terms: Any,
) -> tuple[Tensor, ...]:
    """Allocate the gradients; empty tensors for a bias and a table that need none."""
    named = KernelArguments(*terms)
    return (
        empty_token_major(query, query.shape[2], query.shape[3]),
        empty_token_major(key, key.shape[2], key.shape[3]),
        empty_token_major(value, value.shape[2], value.shape[3]),
        score_mixing.new_empty(score_mixing.shape),
        weight_mixing.new_empty(weight_mixing.shape),
        empty_gradient(named.bias, of_bias, query),
        empty_gradient(named.table, of_table, query),
    )


_BIAS_INDEX, _TABLE_INDEX = (5 + KernelArguments._fields.index(name) for name in ("bias", "table"))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    """Save the tensors that the backward pass needs."""
    _, normalizer = output
    save_for_backward(ctx, inputs, (normalizer,))


def _differentiate(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    """Compute the gradient of each input of ``regard::talking_heads``; None for inputs without one."""
    results: list[Tensor | None] = [None] * len(ctx.non_tensors)
    grad_output = gradients[0]
    if grad_output is None:
        return tuple(results)
    (normalizer,), inputs = load_saved(ctx)
    needed = ctx.needs_input_grad[_BIAS_INDEX], ctx.needs_input_grad[_TABLE_INDEX]
    eager = is_eager_backward(grad_output, *inputs[:5], inputs[_BIAS_INDEX])
    backward = TALKING_HEADS_BACKWARD.compute if eager else TALKING_HEADS_BACKWARD.torch_op
    *results[:5], grad_bias, grad_table = backward(grad_output, *inputs[:5], normalizer, *needed, *inputs[5:])
    results[_BIAS_INDEX] = grad_bias if needed[0] else None
    results[_TABLE_INDEX] = grad_table if needed[1] else None
    return tuple(results)


_TENSORS = "Tensor query, Tensor key, Tensor value, Tensor score_mixing, Tensor weight_mixing"
TALKING_HEADS_BACKWARD = Operator(
    "talking_heads_backward",
    f"(Tensor grad_output, {_TENSORS}, Tensor normalizer, bool of_bias, bool of_table, {SCHEMA}) -> ("
    "Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_score_mixing, Tensor grad_weight_mixing, "
    "Tensor grad_bias, Tensor grad_table)",
    compute=_talking_heads_backward,
    fake=lambda grad_output, query, key, value, score_mixing, weight_mixing, normalizer, *others: _empty_gradients(
        query, key, value, score_mixing, weight_mixing, *others
    ),
    differentiate=refuse_second_derivative,
    vmap=True,
)
TALKING_HEADS = Operator(
    "talking_heads",
    f"({_TENSORS}, {SCHEMA}) -> (Tensor output, Tensor normalizer)",
    compute=_talking_heads,
    fake=lambda query, key, value, *_: _empty_results(query, value),
    save=_save,
    differentiate=_differentiate,
    non_differentiable=(1,),
)
