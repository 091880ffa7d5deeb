"""regard::attention and regard::attention_backward, the native kernels as torch operators: schema, fake, autograd.

    output_i = sum_j exp(score_ij - lse_i) value_j,    lse_i = ln sum_j exp(score_ij)       Dao 2023, section 3.1.1

``operators.kernel_arguments`` explains the arguments of scores: mask, scale, bias, dropout. The backward pass computes
the weights again (algorithm 2 there), so nothing of size queries x keys is stored. There is no second derivative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from regard.kernels.extension import native
from regard.kernels.operators.kernel_arguments import SCHEMA, KernelArguments
from regard.kernels.operators.operator import Operator, load_saved, refuse_second_derivative, save_for_backward
from regard.kernels.results import accumulation_dtype, empty_like_tokens, empty_token_major
from regard.kernels.tracing import any_requires_grad, is_eager

Results: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]
"""output, lse, normalizer, rounding.

normalizer (batch, heads, queries, 2): the largest score of each query and the logarithm of the sum, in the units of the
kernel (``csrc/tiles/normalizer.h``). The backward pass computes weights from these two: lse, their sum, is rounded, and
with large scores the logarithm would be lost.

rounding: the rounding error of a half-precision output; empty in other dtypes. The backward pass computes
sum_j w_ij D_ij as dO_i . o_i. With the rounded output its error is the same for all keys, and accumulates in training
(Qiu and Yao 2025, section 3), so the rounding error is saved and added.
"""

SavedTensors: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""output, normalizer, rounding: the results that the backward pass needs."""

WEIGHT_GRADIENT_NAMES = ("log_weight", "column", "top_keys", "top_grad", "rows", "rows_grad", "sink_weight_grad")
"""Terms that statistics add to the gradient of the weights, in the schema's order: see ``operators.observe_op``."""
_WEIGHT_GRADIENT_SCHEMA = ", ".join(f"Tensor? {name}=None" for name in WEIGHT_GRADIENT_NAMES)


def attention(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch key_heads keys head_dim"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    terms: KernelArguments,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute the output, through the torch operator if torch is tracing, else by calling the kernel directly."""
    if not is_eager(query, key, value, terms.bias, terms.sinks):
        return ATTENTION.torch_op(query, key, value, *terms)[0]
    if any_requires_grad(query, key, value, terms.bias, terms.table, terms.sinks):
        return ATTENTION.compute_with_grad(query, key, value, *terms)[0]
    output = empty_token_major(query, query.shape[2], value.shape[3])
    _run_kernel(query, key, value, (output, None, None, None), terms)
    return output


def _attention(query: Tensor, key: Tensor, value: Tensor, *terms: Any) -> Results:
    """Compute regard::attention on a CPU."""
    results = empty_results(query, key, value, *terms)
    _run_kernel(query, key, value, results, KernelArguments(*terms))
    return results


def empty_results(query: Tensor, key: Tensor, value: Tensor, *terms: Any) -> Results:
    """Allocate the results; also the fake kernel for tracing."""
    del key, terms
    output = empty_token_major(query, query.shape[2], value.shape[3])
    lse = query.new_empty(query.shape[:3], dtype=accumulation_dtype(query.dtype))
    return output, lse, empty_normalizer(lse), empty_rounding_residual(output)


def empty_normalizer(lse: Tensor) -> Tensor:
    """Allocate the normalizer (.., 2), the two parts of ``lse``."""
    return lse.new_empty((*lse.shape, 2))


def empty_rounding_residual(output: Tensor) -> Tensor:
    """Allocate the rounding error of ``output``; empty unless it has half precision."""
    return torch.empty_like(output) if output.itemsize == 2 else output.new_empty(0)


def _run_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    results: tuple[Tensor, Tensor | None, Tensor | None, Tensor | None],
    terms: KernelArguments,
) -> None:
    """Compute into ``results``. The kernels are not called without queries or keys."""
    output, lse, normalizer, rounding = results
    batch, heads, queries, value_dim = output.shape
    if batch == 0 or heads == 0 or queries == 0 or (value_dim == 0 and lse is None):
        return
    if key.shape[2] == 0:
        output.zero_()
        for of_rows in (lse, normalizer):
            if of_rows is not None:
                of_rows.fill_(-torch.inf)
        if rounding is not None:
            rounding.zero_()
        return
    if value_dim == 0:
        output, value = empty_token_major(query, queries, 1), zero_values(value)
    residual = rounding_residual_or_none(rounding)
    native.forward(query, key, value, output, lse, normalizer=normalizer, rounding=residual, **terms.to_kwargs())


def rounding_residual_or_none(rounding: Tensor | None) -> Tensor | None:
    """Convert ``rounding`` for the kernels: None if it is empty."""
    return rounding if rounding is not None and rounding.numel() > 0 else None


def _attention_backward(
    grad_output: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    normalizer: Tensor,
    rounding: Tensor,
    of_bias: bool,
    of_table: bool,
    of_sinks: bool,
    *terms: Any,
) -> tuple[Tensor, ...]:
    """Compute regard::attention_backward on a CPU. A bias and sinks may have other dtypes than sums of gradients."""
    named = KernelArguments(*terms[: len(KernelArguments._fields)])
    of_weights = dict(zip(WEIGHT_GRADIENT_NAMES, terms[len(KernelArguments._fields) :], strict=False))
    gradients = _empty_gradients(query, key, value, (of_bias, of_table, of_sinks), named)
    if normalizer.numel() == 0 or key.shape[2] == 0:
        for gradient in gradients:
            gradient.zero_()
        return gradients
    of_query, of_key, of_value, bias, table, sinks = gradients
    if value.shape[3] == 0:
        value, grad_output = zero_values(value), zero_values(output)
        output, of_value = grad_output, torch.empty_like(value, memory_format=torch.contiguous_format)
    summed, summed_sinks = (tensor.to(accumulation_dtype(query.dtype)) for tensor in (bias, sinks))
    native.backward(
        grad_output,
        query,
        key,
        value,
        output,
        normalizer,
        of_query,
        of_key,
        of_value,
        summed if of_bias else None,
        table if of_table else None,
        grad_lse=grad_lse,
        rounding=rounding_residual_or_none(rounding),
        grad_sinks=summed_sinks if of_sinks else None,
        **of_weights,
        **named.to_kwargs(),
    )
    if summed is not bias:
        bias.copy_(summed)
    if summed_sinks is not sinks:
        sinks.copy_(summed_sinks)
    return gradients


def _empty_gradients(
    query: Tensor, key: Tensor, value: Tensor, needs_grad: tuple[bool, bool, bool], terms: KernelArguments
) -> tuple[Tensor, ...]:
    """Allocate the gradients; empty tensors for a bias, a table and sinks that need none."""
    summed = zip((terms.bias, terms.table, terms.sinks), needs_grad, strict=True)
    return (*empty_like_tokens(query, key, value), *(empty_gradient(tensor, needs, query) for tensor, needs in summed))


def empty_gradient(tensor: Tensor | None, needs_grad: bool, like: Tensor) -> Tensor:
    """Allocate the gradient of a bias, a table or sinks; an empty one without ``needs_grad``."""
    return tensor.new_empty(tensor.shape) if needs_grad and tensor is not None else like.new_empty(0)


_SUMMED_INDICES = [3 + KernelArguments._fields.index(name) for name in ("bias", "table", "sinks")]
"""Inputs besides query, key and value that may have a gradient."""


def save_results(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    """Save the tensors that the backward pass needs."""
    of_output, _, normalizer, rounding = output
    save_for_backward(ctx, inputs, (of_output, normalizer, rounding))


def _differentiate(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    """Compute the gradient of each input of ``regard::attention``; None for inputs without one."""
    grad_output, grad_lse = gradients[:2]
    if grad_output is None and grad_lse is None:
        return (None,) * len(ctx.non_tensors)
    (output, normalizer, rounding), inputs = load_saved(ctx)
    saved = (output, normalizer, rounding)
    return tuple(compute_gradients(grad_output, grad_lse, saved, inputs, ctx.needs_input_grad))


def compute_gradients(
    grad_output: Tensor | None,
    grad_lse: Tensor | None,
    saved: SavedTensors,
    inputs: Sequence[Any],
    needed: Sequence[bool],
    *of_weights: Tensor | None,
) -> list[Tensor | None]:
    """Compute the gradient of each of ``inputs`` (query, key, value and terms); None for those without one.

    ``of_weights`` are the tensors that ``WEIGHT_GRADIENT_NAMES`` names.
    """
    results: list[Tensor | None] = [None] * len(inputs)
    grad_output = torch.zeros_like(saved[0]) if grad_output is None else grad_output
    needs_grad = [needed[index] for index in _SUMMED_INDICES]
    *results[:3], of_bias, of_table, of_sinks = ATTENTION_BACKWARD.call_backward(
        (grad_output, grad_lse, *inputs[:3], *(inputs[at] for at in _SUMMED_INDICES), *of_weights),
        *(grad_output, grad_lse, *inputs[:3], *saved, *needs_grad, *inputs[3:], *of_weights),
    )
    for index, is_needed, gradient in zip(_SUMMED_INDICES, needs_grad, (of_bias, of_table, of_sinks), strict=True):
        results[index] = gradient if is_needed else None
    return results


def zero_values(tensor: Tensor) -> Tensor:
    """Make zeros (batch, heads, length, 1), to replace a tensor whose last dimension is 0."""
    return tensor.new_zeros(1).expand(*tensor.shape[:3], 1)


ATTENTION_BACKWARD = Operator(
    "attention_backward",
    "(Tensor grad_output, Tensor? grad_lse, Tensor query, Tensor key, Tensor value, Tensor output, Tensor normalizer, "
    f"Tensor rounding_residual, bool of_bias, bool of_table, bool of_sinks, {SCHEMA}, {_WEIGHT_GRADIENT_SCHEMA}) -> "
    "(Tensor of_query, Tensor of_key, Tensor of_value, Tensor of_bias, Tensor of_table, Tensor of_sinks)",
    compute=_attention_backward,
    fake=lambda _, __, query, key, value, *others: _empty_gradients(
        query, key, value, others[3:6], KernelArguments(*others[6 : 6 + len(KernelArguments._fields)])
    ),
    differentiate=refuse_second_derivative,
    vmap=True,
)
ATTENTION = Operator(
    "attention",
    f"(Tensor query, Tensor key, Tensor value, {SCHEMA}) -> "
    "(Tensor output, Tensor lse, Tensor normalizer, Tensor rounding_residual)",
    compute=_attention,
    fake=empty_results,
    save=save_results,
    differentiate=_differentiate,
    num_returned=2,
)
