"""regard::sigmoid_attention and its backward pass: attention whose weights are sigmoids, fused, as torch operators.

    output_i = sum_j w_ij value_j,    w_ij = sigmoid(score_ij + b_i)       Ramapuram et al. 2025, section 2
    dscore_ij = w_ij (1 - w_ij) dO_i . value_j

b_i is ``score_bias``, or -log of the number of keys that query i may attend to, if that is None.
``operators.kernel_arguments`` explains the other arguments of scores: mask, scale, bias, dropout. The backward pass
computes the weights again, so nothing of size queries x keys is stored. There is no second derivative.
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
"""output, normalizer (batch, heads, queries, 2): b_i of each query, and whether its result is finite
(``csrc/normalizer.h``). The backward pass needs the normalizer alone.
"""


def sigmoid_attention(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch key_heads keys head_dim"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    score_bias: float | None,
    terms: KernelArguments,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute the output, through the torch operator if torch is tracing, else by calling the kernel directly."""
    if not is_eager(query, key, value, terms.bias):
        return SIGMOID_ATTENTION.torch_op(query, key, value, score_bias, *terms)[0]
    if any_requires_grad(query, key, value, terms.bias, terms.table):
        return SIGMOID_ATTENTION.compute_with_grad(query, key, value, score_bias, *terms)[0]
    output = empty_token_major(query, query.shape[2], value.shape[3])
    _run_kernel(query, key, value, score_bias, output, None, terms)
    return output


def _sigmoid_attention(query: Tensor, key: Tensor, value: Tensor, score_bias: float | None, *terms: Any) -> Results:
    """Compute regard::sigmoid_attention on a CPU."""
    output, normalizer = _empty_results(query, value)
    _run_kernel(query, key, value, score_bias, output, normalizer, KernelArguments(*terms))
    return output, normalizer


def _empty_results(query: Tensor, value: Tensor) -> Results:
    """Allocate the results."""
    of_rows = query.new_empty(query.shape[:3], dtype=accumulation_dtype(query.dtype))
    return empty_token_major(query, query.shape[2], value.shape[3]), empty_normalizer(of_rows)


def _run_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_bias: float | None,
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
    fixed = None if score_bias is None else torch.tensor([score_bias], dtype=torch.float64)
    native.sigmoid_forward(query, key, value, output, score_bias=fixed, normalizer=normalizer, **terms.to_kwargs())


def _sigmoid_backward(
    grad_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    normalizer: Tensor,
    of_bias: bool,
    of_table: bool,
    *terms: Any,
) -> tuple[Tensor, ...]:
    """Compute regard::sigmoid_attention_backward on a CPU. A bias may have another dtype than its gradient's sum."""
    gradients = _empty_gradients(query, key, value, of_bias, of_table, *terms)
    if normalizer.numel() == 0 or key.shape[2] == 0:
        for gradient in gradients:
            gradient.zero_()
        return gradients
    grad_query, grad_key, grad_value, bias, table = gradients
    if value.shape[3] == 0:
        value, grad_output = zero_values(value), zero_values(grad_output)
        grad_value = torch.empty_like(value, memory_format=torch.contiguous_format)
    summed = bias.to(accumulation_dtype(query.dtype))
    native.sigmoid_backward(
        grad_output,
        query,
        key,
        value,
        normalizer,
        grad_query,
        grad_key,
        grad_value,
        summed if of_bias else None,
        table if of_table else None,
        **KernelArguments(*terms).to_kwargs(),
    )
    if summed is not bias:
        bias.copy_(summed)
    return gradients


def _empty_gradients(
    query: Tensor, key: Tensor, value: Tensor, of_bias: bool, of_table: bool, *terms: Any
) -> tuple[Tensor, ...]:
    """Allocate the gradients; empty tensors for a bias and a table that need none."""
    named = KernelArguments(*terms)
    return (
        empty_token_major(query, query.shape[2], query.shape[3]),
        empty_token_major(key, key.shape[2], key.shape[3]),
        empty_token_major(value, value.shape[2], value.shape[3]),
        empty_gradient(named.bias, of_bias, query),
        empty_gradient(named.table, of_table, query),
    )


_BIAS_INDEX, _TABLE_INDEX = (4 + KernelArguments._fields.index(name) for name in ("bias", "table"))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    """Save the tensors that the backward pass needs."""
    _, normalizer = output
    save_for_backward(ctx, inputs, (normalizer,))


def _differentiate(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    """Compute the gradient of each input of ``regard::sigmoid_attention``; None for inputs without one."""
    results: list[Tensor | None] = [None] * len(ctx.non_tensors)
    grad_output = gradients[0]
    if grad_output is None:
        return tuple(results)
    (normalizer,), inputs = load_saved(ctx)
    query, key, value, _, *terms = inputs
    needed = ctx.needs_input_grad[_BIAS_INDEX], ctx.needs_input_grad[_TABLE_INDEX]
    eager = is_eager_backward(grad_output, query, key, value, inputs[_BIAS_INDEX])
    backward = SIGMOID_ATTENTION_BACKWARD.compute if eager else SIGMOID_ATTENTION_BACKWARD.torch_op
    *results[:3], grad_bias, grad_table = backward(grad_output, query, key, value, normalizer, *needed, *terms)
    results[_BIAS_INDEX] = grad_bias if needed[0] else None
    results[_TABLE_INDEX] = grad_table if needed[1] else None
    return tuple(results)


SIGMOID_ATTENTION_BACKWARD = Operator(
    "sigmoid_attention_backward",
    "(Tensor grad_output, Tensor query, Tensor key, Tensor value, Tensor normalizer, bool of_bias, bool of_table, "
    f"{SCHEMA}) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_bias, Tensor grad_table)",
    compute=_sigmoid_backward,
    fake=lambda grad_output, query, key, value, normalizer, *others: _empty_gradients(query, key, value, *others),
    differentiate=refuse_second_derivative,
    vmap=True,
)
SIGMOID_ATTENTION = Operator(
    "sigmoid_attention",
    f"(Tensor query, Tensor key, Tensor value, float? score_bias, {SCHEMA}) -> (Tensor output, Tensor normalizer)",
    compute=_sigmoid_attention,
    fake=lambda query, key, value, *_: _empty_results(query, value),
    save=_save,
    differentiate=_differentiate,
    non_differentiable=(1,),
)
