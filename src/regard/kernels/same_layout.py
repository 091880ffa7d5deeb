"""Replace elements in a copy of a tensor that has the same memory layout.

With other strides, or another alignment of the first element, a fused kernel takes another path and returns other bits.
So a guard of such a kernel may change values only: a contiguous copy, as ``masked_fill`` makes, would change rows whose
values are the same.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from regard.kernels.autograd_function import Function

_ALIGNMENT = 64  # bytes: alignment of torch's allocations, and size of the widest vectors


def zero_where(tensor: Tensor, where: Tensor) -> Tensor:
    """Copy ``tensor`` in the same layout, with 0 where ``where`` is True. See ``fill_where``."""
    return fill_where(tensor, where, 0.0)


def fill_where(tensor: Tensor, where: Tensor, number: float) -> Tensor:
    """Copy ``tensor`` in the same layout, with ``number`` where ``where`` (bool, broadcastable to it) is True.

    No two elements may share memory, except along expanded dimensions (see ``copy_if_overlapping``). Differentiable;
    the gradient keeps the layout of the incoming gradient.
    """
    return replace_where(tensor, where, tensor.new_full((), number))


def replace_where(tensor: Tensor, where: Tensor, others: Tensor) -> Tensor:
    """Copy ``tensor`` in the same layout, with elements of ``others`` where ``where`` is True. Differentiable."""
    result: Tensor = _ReplaceWhere.apply(tensor, where, others)
    return result


def copy_if_overlapping(tensor: Tensor) -> Tensor:
    """Return the tensor itself, or a contiguous copy if elements share memory, as in overlapping windows.

    Dimensions that were expanded as a whole stay expanded. torch's lazy negation is applied.
    """
    tensor = tensor.resolve_neg()
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if 0 < stride <= reach and size > 1:
            return tensor.contiguous()
        reach += stride * (size - 1)
    return tensor


@final
class _ReplaceWhere(Function):
    """Autograd function of ``replace_where``: the gradient of ``tensor`` keeps the layout of the incoming gradient."""

    @staticmethod
    def forward(tensor: Tensor, where: Tensor, others: Tensor) -> Tensor:
        """Copy the tensor in the same layout, with elements of ``others`` where ``where`` is True."""
        return _where_same_layout(tensor, where, others)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save ``where`` for the backward pass."""
        del output
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor | None]:
        """Compute the gradients of ``tensor`` and ``others``, each 0 where the other was used."""
        (gradient,), (where,) = gradients, ctx.saved_tensors
        of_others = gradient.masked_fill(~where, 0.0) if ctx.needs_input_grad[2] else None
        return zero_where(copy_if_overlapping(gradient), where), None, of_others


def _where_same_layout(tensor: Tensor, where: Tensor, others: Tensor) -> Tensor:
    """Compute torch.where(where, others, tensor) in the layout of ``tensor``.

    The copy is contiguous if elements that share memory get different values.
    """
    if tensor.numel() == 0:
        return tensor.clone()
    where, others = where.expand_as(tensor), others.expand_as(tensor)
    expanded = [
        dim
        for dim, (stride, size) in enumerate(zip(tensor.stride(), tensor.shape, strict=True))
        if stride == 0 < size - 1
    ]
    if not all(_is_constant_along(dim, part) for dim in expanded for part in (where, others)):
        return torch.where(where, others, tensor.contiguous())
    source = _narrow_to_first(expanded, tensor)
    copy = _empty_same_layout(source)
    torch.where(_narrow_to_first(expanded, where), _narrow_to_first(expanded, others), source, out=copy)
    return _without_base(copy.expand_as(tensor))


def _without_base(view: Tensor) -> Tensor:
    """Return the same numbers as a tensor that is no view: a Function that returns a view forbids writes into it."""
    return view.new_empty(0).set_(view.untyped_storage(), view.storage_offset(), view.shape, view.stride())


def _narrow_to_first(dims: list[int], tensor: Tensor) -> Tensor:
    """Narrow the tensor to the first element along ``dims``."""
    for dim in dims:
        tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _is_constant_along(dim: int, tensor: Tensor) -> bool:
    """Whether all elements along dimension ``dim`` are equal."""
    return tensor.stride(dim) == 0 or bool((tensor == tensor.narrow(dim, 0, 1)).all())


def _empty_same_layout(tensor: Tensor) -> Tensor:
    """Allocate a tensor with the strides of ``tensor`` and the same offset from the alignment; gaps are never read."""
    extent = 1 + sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    item = tensor.element_size()
    if tensor.data_ptr() % item:  # not aligned to elements, which only frombuffer can reproduce
        octets = np.empty(extent * item + _ALIGNMENT, np.uint8)
        start = (tensor.data_ptr() - octets.ctypes.data) % _ALIGNMENT
        memory = torch.frombuffer(octets, dtype=tensor.dtype, count=extent, offset=start)
        return memory.as_strided(tensor.shape, tensor.stride())
    memory = tensor.new_empty(extent + _ALIGNMENT // item)
    first = (tensor.data_ptr() - memory.data_ptr()) % _ALIGNMENT // item
    return memory.as_strided(tensor.shape, tensor.stride(), first)
