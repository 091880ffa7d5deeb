"""regard::attention and regard::attention_backward, the native kernels as torch operators: schema, fake, autograd.

    output_i = sum_j exp(score_ij - lse_i) value_j,    lse_i = ln sum_j exp(score_ij)       Dao 2023, section 3.1.1

``operators.kernel_arguments`` says what makes scores: mask, scale, bias, dropout. The backward pass computes the
weights again (algorithm 2 there), so nothing of size queries x keys is kept. There is no second derivative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import torch
from jaxtyping import Float
from torch import Tensor

from regard.kernels.extension import native
from regard.kernels.operators.kernel_arguments import SCHEMA, KernelArguments
from regard.kernels.operators.operator import Operator, load_saved, refuse_second_derivative, save_for_backward
from regard.kernels.results import accumulation_dtype, empty_token_major
from regard.kernels.tracing import any_requires_grad, is_eager, is_eager_backward

Results: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]
"""output, lse, normalizer, rounding.

normalizer (batch, heads, queries, 2): the largest score of each query and the logarithm of the sum, as the kernel has
them (``csrc/normalizer.h``). The backward pass takes weights from these two: lse, their sum, is rounded, and of large
scores nothing of the logarithm would be left.

rounding: what half precision cut off the output; empty in other dtypes. The backward pass takes sum_j w_ij D_ij as
dO_i . o_i. With the rounded output its error is the same for all keys, and adds up in training (Qiu and Yao 2025,
section 3), so what was cut off is kept and added.
"""

SavedTensors: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""output, normalizer, rounding: those of the results that the backward pass needs."""

WEIGHT_GRADIENT_NAMES = ("log_weight", "column", "top_keys", "top_grad", "rows", "rows_grad")
"""What statistics add to the gradient of the weights, in the order of the schema: see ``operators.observe_op``."""
_WEIGHT_GRADIENT_SCHEMA = ", ".join(f"Tensor? {name}=None" for name in WEIGHT_GRADIENT_NAMES)


def attention(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch key_heads keys head_dim"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    terms: KernelArguments,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """The output, by the operator where torch traces, and else by the kernel itself."""
    if not is_eager(query, key, value, terms.bias):
        return cast(Tensor, ATTENTION.torch_op(query, key, value, *terms)[0])
    if any_requires_grad(query, key, value, terms.bias, terms.table):
        return cast(Tensor, ATTENTION.compute_with_grad(query, key, value, *terms)[0])
    output = empty_token_major(query, query.shape[2], value.shape[3])
    _run_kernel(query, key, value, (output, None, None, None), terms)
    return output


def _attention(query: Tensor, key: Tensor, value: Tensor, *terms: Any) -> Results:
    """regard::attention on a CPU."""
    results = _empty_results(query, key, value, *terms)
    _run_kernel(query, key, value, results, KernelArguments(*terms))
    return results


def _empty_results(query: Tensor, key: Tensor, value: Tensor, *terms: Any) -> Results:
    """The results, yet to be filled: all that a trace needs to know."""
    del key, terms
    output = empty_token_major(query, query.shape[2], value.shape[3])
    lse = query.new_empty(query.shape[:3], dtype=accumulation_dtype(query.dtype))
    return output, lse, empty_normalizer(lse), empty_rounding_residual(output)


def empty_normalizer(lse: Tensor) -> Tensor:
    """A tensor for the two parts of ``lse``, yet to be filled."""
    return lse.new_empty((*lse.shape, 2))


def empty_rounding_residual(output: Tensor) -> Tensor:
    """A tensor for what is cut off ``output``, yet to be filled."""
    return torch.empty_like(output) if output.itemsize == 2 else output.new_empty(0)


def _run_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    results: tuple[Tensor, Tensor | None, Tensor | None, Tensor | None],
    terms: KernelArguments,
) -> None:
    """Compute into ``results``. The kernels are not asked for what has no queries, keys or values."""
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
    cut = rounding_residual_or_none(rounding)
    native.forward(query, key, value, output, lse, normalizer=normalizer, rounding=cut, **terms.to_kwargs())


def rounding_residual_or_none(rounding: Tensor | None) -> Tensor | None:
    """``rounding`` as the kernels take it: None where it is empty."""
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
    *terms: Any,
) -> tuple[Tensor, ...]:
    """regard::attention_backward on a CPU. A bias may be of another dtype than what its gradient is summed in."""
    named = KernelArguments(*terms[: len(KernelArguments._fields)])
    of_weights = dict(zip(WEIGHT_GRADIENT_NAMES, terms[len(KernelArguments._fields) :], strict=False))
    gradients = _empty_gradients(
        grad_output, grad_lse, query, key, value, output, normalizer, rounding, of_bias, of_table, *terms
    )
    if normalizer.numel() == 0 or key.shape[2] == 0:
        for gradient in gradients:
            gradient.zero_()
        return gradients
    of_query, of_key, of_value, bias, table = gradients
    if value.shape[3] == 0:
        value, grad_output = zero_values(value), zero_values(output)
        output, of_value = grad_output, torch.empty_like(value, memory_format=torch.contiguous_format)
    summed = bias.to(accumulation_dtype(query.dtype))
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
        **of_weights,
        **named.to_kwargs(),
    )
    if summed is not bias:
        bias.copy_(summed)
    return gradients


def _empty_gradients(
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
    *terms: Any,
) -> tuple[Tensor, ...]:
    """The gradients, yet to be filled; empty tensors for a bias and a table that want none."""
    del grad_output, grad_lse, output, normalizer, rounding
    named = KernelArguments(*terms[: len(KernelArguments._fields)])
    return (
        empty_token_major(query, query.shape[2], query.shape[3]),
        empty_token_major(key, key.shape[2], key.shape[3]),
        empty_token_major(value, value.shape[2], value.shape[3]),
        empty_gradient(named.bias, of_bias, query),
        empty_gradient(named.table, of_table, query),
    )


def empty_gradient(tensor: Tensor | None, wanted: bool, like: Tensor) -> Tensor:
    """Of a bias or a table, yet to be filled; no numbers where none is wanted."""
    return tensor.new_empty(tensor.shape) if wanted and tensor is not None else like.new_empty(0)


_BIAS_INDEX, _TABLE_INDEX = (3 + KernelArguments._fields.index(name) for name in ("bias", "table"))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    """Keep what the backward pass needs."""
    of_output, _, normalizer, rounding = output
    save_for_backward(ctx, inputs, (of_output, normalizer, rounding))


def _differentiate(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    """A gradient for each input of ``regard::attention``; None where it has none."""
    grad_output, grad_lse = gradients[:2]
    if grad_output is None and grad_lse is None:
        return (None,) * len(ctx.non_tensors)
    (output, normalizer, rounding), given = load_saved(ctx)
    saved = (output, normalizer, rounding)
    return tuple(compute_gradients(grad_output, grad_lse, saved, given, ctx.needs_input_grad))


def compute_gradients(
    grad_output: Tensor | None,
    grad_lse: Tensor | None,
    saved: SavedTensors,
    given: Sequence[Any],
    needed: Sequence[bool],
    *of_weights: Tensor | None,
) -> list[Tensor | None]:
    """A gradient for each of ``given``: query, key, value and terms; None where there is none.

    ``of_weights`` are what ``WEIGHT_GRADIENT_NAMES`` names.
    """
    found: list[Tensor | None] = [None] * len(given)
    grad_output = torch.zeros_like(saved[0]) if grad_output is None else grad_output
    wanted = needed[_BIAS_INDEX], needed[_TABLE_INDEX]
    short = is_eager_backward(grad_output, grad_lse, *given[:3], given[_BIAS_INDEX], *of_weights)
    backward = ATTENTION_BACKWARD.compute if short else ATTENTION_BACKWARD.torch_op
    *found[:3], of_bias, of_table = backward(
        grad_output, grad_lse, *given[:3], *saved, *wanted, *given[3:], *of_weights
    )
    found[_BIAS_INDEX], found[_TABLE_INDEX] = (of_bias if wanted[0] else None), (of_table if wanted[1] else None)
    return found


def zero_values(tensor: Tensor) -> Tensor:
    """(batch, heads, length, 1) of zeros, in place of a tensor whose last dimension is 0."""
    return tensor.new_zeros(1).expand(*tensor.shape[:3], 1)


ATTENTION_BACKWARD = Operator(
    "attention_backward",
    "(Tensor grad_output, Tensor? grad_lse, Tensor query, Tensor key, Tensor value, Tensor output, Tensor normalizer, "
    f"Tensor rounding_residual, bool of_bias, bool of_table, {SCHEMA}, {_WEIGHT_GRADIENT_SCHEMA}) -> "
    "(Tensor of_query, Tensor of_key, Tensor of_value, Tensor of_bias, Tensor of_table)",
    compute=_attention_backward,
    fake=_empty_gradients,
    differentiate=refuse_second_derivative,
    vmap=True,
)
ATTENTION = Operator(
    "attention",
    f"(Tensor query, Tensor key, Tensor value, {SCHEMA}) -> "
    "(Tensor output, Tensor lse, Tensor normalizer, Tensor rounding_residual)",
    compute=_attention,
    fake=_empty_results,
    save=_save,
    differentiate=_differentiate,
    num_returned=2,
)
