"""regard::masked_attention: attention with a mask of ``transformers`` whose structure is found when a graph runs.

While torch traces, a mask has no values, and so no structure that kernels could use. This operator gets the mask as it
is, and reads it in each call: the kernels then skip what a causal mask, a window or padding hides. Nothing is kept from
call to call, since a compiled graph writes into memory without changing a tensor's version. Reading takes a pass over
the cells of the mask, some percent of the time of the attention of one text; small masks stay in the graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.contract import Frame
from regard.kernels.operators import attention_op
from regard.kernels.operators.attention_op import Results
from regard.kernels.operators.kernel_arguments import KernelArguments, make_kernel_arguments, make_schema
from regard.kernels.operators.operator import Operator, load_saved, refuse_second_derivative
from regard.kernels.request import Terms
from regard.kernels.results import empty_like_tokens, empty_token_major
from regard.kernels.select import select
from regard.masks.additive_mask import read_mask_values
from regard.masks.dense_mask import Keep
from regard.masks.visible_keys import VisibleKeys
from regard.tensors import is_traced
from regard.validation import make_request

_TERMS = ("scale", "dropout", "seed", "softcap", "sinks")
"""The arguments of kernels that are no part of the mask."""
_SCHEMA = f"Tensor mask, {make_schema(_TERMS)}"
_MIN_CELLS = 2**18
"""Queries x keys from which on reading a mask takes less time than its structure saves."""


def attention_in_graph(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *, dropout: float, **terms: Any
) -> Tensor | None:
    """Compute attention in a graph that is traced; None if torch does not trace, or the mask is part of the graph.

    That is a small mask, one with a gradient or with heads of its own, and any mask where another implementation than
    native computes. ``terms`` are scale, softcap and sinks. Raises what ``regard.attention`` raises.
    """
    if not is_traced() or not _is_readable(attention_mask):
        return None
    # The cells are for the checks of sizes; nothing reads them.
    request = make_request(
        query, key, value, mask=Keep(attention_mask.detach() == 0), bias=None, dropout=dropout, **terms
    )
    if select("attention", "auto", request).name != "native":
        return None
    scaled = request.with_rebalanced_scale
    without_mask = scaled.terms._replace(mask=None)
    arguments = make_kernel_arguments(request.frame, query.shape[0], scaled.query.dtype, without_mask)
    others = (getattr(arguments, name) for name in _TERMS)
    output: Tensor = MASKED_ATTENTION.torch_op(
        scaled.query, scaled.key, scaled.value, attention_mask.detach(), *others
    )[0]
    return output if scaled is request else output.to(query.dtype)


def _is_readable(mask: Any) -> bool:
    return (
        isinstance(mask, Tensor)
        and mask.dim() == 4
        and mask.is_cpu
        and not mask.requires_grad
        and (mask.is_floating_point() or mask.dtype == torch.bool)
        and mask.shape[1] == 1
        and mask.shape[2] * mask.shape[3] >= _MIN_CELLS
    )


def _attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *terms: Any) -> Results:
    """Compute regard::masked_attention on a CPU."""
    visible, arguments = _read(query, key, mask, *terms)
    results: Results = attention_op.ATTENTION.compute(
        query, visible.narrow(key, 2), visible.narrow(value, 2), *arguments
    )
    return results


def _backward(
    grad_output: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    normalizer: Tensor,
    rounding: Tensor,
    of_sinks: bool,
    mask: Tensor,
    *terms: Any,
) -> tuple[Tensor, ...]:
    """Compute regard::masked_attention_backward on a CPU. Keys that are hidden from every query get zeros."""
    visible, arguments = _read(query, key, mask, *terms)
    narrowed = visible.narrow(key, 2), visible.narrow(value, 2)
    results = output, normalizer, rounding
    of_query, *of_sides, _, _, of_sink = attention_op.ATTENTION_BACKWARD.compute(
        grad_output, grad_lse, query, *narrowed, *results, False, False, of_sinks, *arguments
    )
    whole = [
        _restore_hidden_keys(gradient, side, visible) for gradient, side in zip(of_sides, (key, value), strict=True)
    ]
    return of_query, *whole, of_sink


def _read(
    query: Tensor,
    key: Tensor,
    mask: Tensor,
    *terms: Any,
) -> tuple[VisibleKeys, KernelArguments]:
    """Find the structure of the mask; return which keys are visible, and the arguments of the kernel for these."""
    visible, bias = read_mask_values(mask)
    frame = Frame(query.shape[2], visible.narrow(key, 2).shape[2])
    structure = Terms(visible.mask, None if bias is None else visible.narrow(bias, 3))
    arguments = make_kernel_arguments(frame, query.shape[0], query.dtype, structure)
    return visible, arguments._replace(**dict(zip(_TERMS, terms, strict=True)))


def _restore_hidden_keys(gradient: Tensor, side: Tensor, visible: VisibleKeys) -> Tensor:
    """Insert zeros for the keys that were left out; ``side`` is key or value."""
    if gradient.shape[2] == side.shape[2]:
        return gradient
    whole = empty_token_major(side, side.shape[2], side.shape[3]).zero_()
    visible.narrow(whole, 2).copy_(gradient)
    return whole


def _differentiate(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    """Compute the gradient of each input; None for the mask, the numbers, and sinks that need none."""
    grad_output, grad_lse = gradients[:2]
    if grad_output is None and grad_lse is None:
        return (None,) * len(ctx.non_tensors)
    saved, (query, key, value, *others) = load_saved(ctx)
    if grad_output is None:
        grad_output = saved[0].new_zeros(saved[0].shape)
    of_sinks = ctx.needs_input_grad[-1]
    tensors = (grad_output, grad_lse, query, key, value)
    *of_tokens, of_sink = _BACKWARD.call_backward((*tensors, others[-1]), *tensors, *saved, of_sinks, *others)
    return *of_tokens, *(None,) * (len(others) - 1), of_sink if of_sinks else None


_BACKWARD = Operator(
    "masked_attention_backward",
    "(Tensor grad_output, Tensor? grad_lse, Tensor query, Tensor key, Tensor value, Tensor output, Tensor normalizer, "
    f"Tensor rounding_residual, bool of_sinks, {_SCHEMA}) -> (Tensor of_query, Tensor of_key, Tensor of_value, "
    "Tensor of_sinks)",
    compute=_backward,
    fake=lambda _, __, query, key, value, *others: (
        *empty_like_tokens(query, key, value),
        attention_op.empty_gradient(others[-1], others[3], query),  # of sinks, the last of the terms
    ),
    differentiate=refuse_second_derivative,
    vmap=True,
)
MASKED_ATTENTION = Operator(
    "masked_attention",
    f"(Tensor query, Tensor key, Tensor value, {_SCHEMA}) -> "
    "(Tensor output, Tensor lse, Tensor normalizer, Tensor rounding_residual)",
    compute=_attention,
    fake=attention_op.empty_results,
    save=attention_op.save_results,
    differentiate=_differentiate,
    num_returned=2,
)
