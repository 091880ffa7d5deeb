"""regard::additive and regard::additive_backward: additive attention, fused, as torch operators.

    score_ij = v . tanh(a_i + b_j)          Bahdanau et al. 2015, appendix A.1.2; a, b: queries and keys, projected
    output_i = sum_j exp(score_ij - lse_i) value_j,    lse_i = ln sum_j exp(score_ij)

Tensors are float32 or float64: half precision is converted before the projection, for the same accuracy as elsewhere.
``operators.kernel_arguments`` explains the other arguments: mask, bias, dropout; there is no scale. The backward pass
computes scores and tanh again, so nothing of size queries x keys is stored. There is no second derivative.
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

Results: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""output, lse, normalizer (see ``attention_op.Results``)."""


def additive_attention(
    of_query: Float[Tensor, "batch heads queries inner"],
    of_key: Float[Tensor, "batch key_heads keys inner"],
    vector: Float[Tensor, "heads inner"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    terms: KernelArguments,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute the output, through the torch operator if torch is tracing, else by calling the kernel directly."""
    tensors = (of_query, of_key, vector, value)
    if not is_eager(*tensors, terms.bias):
        return ADDITIVE.torch_op(*tensors, *terms)[0]
    if any_requires_grad(*tensors, terms.bias, terms.table):
        return ADDITIVE.compute_with_grad(*tensors, *terms)[0]
    return ADDITIVE.compute(*tensors, *terms)[0]


def _additive(of_query: Tensor, of_key: Tensor, vector: Tensor, value: Tensor, *terms: Any) -> Results:
    """Compute regard::additive on a CPU. The kernel is not called without queries or keys."""
    output, lse, normalizer = _empty_results(of_query, of_key, vector, value, *terms)
    if lse.numel() == 0:
        return output, lse, normalizer
    if of_key.shape[2] == 0:
        return output.zero_(), lse.fill_(-torch.inf), normalizer.fill_(-torch.inf)
    filled = output
    if value.shape[3] == 0:
        value, filled = zero_values(value), empty_token_major(of_query, of_query.shape[2], 1)
    options = KernelArguments(*terms).to_kwargs()
    native.additive_forward(of_query, of_key, vector, value, filled, lse, normalizer=normalizer, **options)
    return output, lse, normalizer


def _empty_results(of_query: Tensor, of_key: Tensor, vector: Tensor, value: Tensor, *terms: Any) -> Results:
    """Allocate the results; also the fake kernel for tracing."""
    del of_key, vector, terms
    output = empty_token_major(of_query, of_query.shape[2], value.shape[3])
    lse = of_query.new_empty(of_query.shape[:3])
    return output, lse, empty_normalizer(lse)


def _additive_backward(
    grad_output: Tensor,
    grad_lse: Tensor | None,
    of_query: Tensor,
    of_key: Tensor,
    vector: Tensor,
    value: Tensor,
    output: Tensor,
    normalizer: Tensor,
    of_bias: bool,
    of_table: bool,
    *terms: Any,
) -> tuple[Tensor, ...]:
    """Compute regard::additive_backward on a CPU. A bias may have another dtype than the sum of its gradient."""
    gradients = _empty_gradients(
        grad_output, grad_lse, of_query, of_key, vector, value, output, normalizer, of_bias, of_table, *terms
    )
    if normalizer.numel() == 0 or of_key.shape[2] == 0:
        for gradient in gradients:
            gradient.zero_()
        return gradients
    grad_of_query, grad_of_key, grad_vector, grad_value, bias, table = gradients
    if value.shape[3] == 0:
        value, grad_output = zero_values(value), zero_values(output)
        output, grad_value = grad_output, torch.empty_like(value, memory_format=torch.contiguous_format)
    summed = bias.to(accumulation_dtype(of_query.dtype))
    native.additive_backward(
        grad_output,
        of_query,
        of_key,
        vector,
        value,
        output,
        normalizer,
        grad_of_query,
        grad_of_key,
        grad_vector,
        grad_value,
        summed if of_bias else None,
        table if of_table else None,
        grad_lse=grad_lse,
        **KernelArguments(*terms).to_kwargs(),
    )
    if summed is not bias:
        bias.copy_(summed)
    return gradients


def _empty_gradients(
    grad_output: Tensor,
    grad_lse: Tensor | None,
    of_query: Tensor,
    of_key: Tensor,
    vector: Tensor,
    value: Tensor,
    output: Tensor,
    normalizer: Tensor,
    of_bias: bool,
    of_table: bool,
    *terms: Any,
) -> tuple[Tensor, ...]:
    """Allocate the gradients; empty tensors for a bias and a table that need none."""
    del grad_output, grad_lse, output, normalizer
    named = KernelArguments(*terms)
    return (
        empty_token_major(of_query, of_query.shape[2], of_query.shape[3]),
        empty_token_major(of_key, of_key.shape[2], of_key.shape[3]),
        vector.new_empty(vector.shape),
        empty_token_major(value, value.shape[2], value.shape[3]),
        empty_gradient(named.bias, of_bias, of_query),
        empty_gradient(named.table, of_table, of_query),
    )


_BIAS_INDEX, _TABLE_INDEX = (4 + KernelArguments._fields.index(name) for name in ("bias", "table"))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    """Save the tensors that the backward pass needs."""
    of_output, _, normalizer = output
    save_for_backward(ctx, inputs, (of_output, normalizer))


def _differentiate(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    """Compute the gradient of each input of ``regard::additive``; None for inputs without one."""
    results: list[Tensor | None] = [None] * len(ctx.non_tensors)
    grad_output, grad_lse, _ = gradients
    if grad_output is None and grad_lse is None:
        return tuple(results)
    (output, normalizer), inputs = load_saved(ctx)
    grad_output = torch.zeros_like(output) if grad_output is None else grad_output
    needed = ctx.needs_input_grad[_BIAS_INDEX], ctx.needs_input_grad[_TABLE_INDEX]
    eager = is_eager_backward(grad_output, grad_lse, *inputs[:4], inputs[_BIAS_INDEX])
    backward = ADDITIVE_BACKWARD.compute if eager else ADDITIVE_BACKWARD.torch_op
    *results[:4], grad_bias, grad_table = backward(
        grad_output, grad_lse, *inputs[:4], output, normalizer, *needed, *inputs[4:]
    )
    results[_BIAS_INDEX] = grad_bias if needed[0] else None
    results[_TABLE_INDEX] = grad_table if needed[1] else None
    return tuple(results)


ADDITIVE_BACKWARD = Operator(
    "additive_backward",
    "(Tensor grad_output, Tensor? grad_lse, Tensor of_query, Tensor of_key, Tensor vector, Tensor value, "
    f"Tensor output, Tensor normalizer, bool of_bias, bool of_table, {SCHEMA}) -> (Tensor grad_of_query, "
    "Tensor grad_of_key, Tensor grad_vector, Tensor grad_value, Tensor grad_bias, Tensor grad_table)",
    compute=_additive_backward,
    fake=_empty_gradients,
    differentiate=refuse_second_derivative,
    vmap=True,
)
ADDITIVE = Operator(
    "additive",
    f"(Tensor of_query, Tensor of_key, Tensor vector, Tensor value, {SCHEMA}) -> "
    "(Tensor output, Tensor lse, Tensor normalizer)",
    compute=_additive,
    fake=_empty_results,
    save=_save,
    differentiate=_differentiate,
    non_differentiable=(2,),
)
