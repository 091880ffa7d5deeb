"""Zeros in a copy of a tensor that lies in memory as the tensor does.

Where strides differ, or the alignment of the first number, a fused kernel takes another path and gives other bits. So
what guards such a kernel may change numbers alone: a contiguous copy, as ``masked_fill`` makes it, would change rows
whose numbers are all as they were.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

_ALIGNMENT = 64  # bytes, of what torch allocates; and the widest vectors there are


def zero_where(tensor: Tensor, where: Tensor) -> Tensor:
    """``tensor`` with 0 in the elements that ``where`` (bool, broadcastable to it) names, in the same layout.

    No two elements may share memory, except along expanded dimensions (see ``copy_if_overlapping``). Differentiable.
    """
    result: Tensor = _ZeroWhere.apply(tensor, where)  # type: ignore[no-untyped-call]
    return result


def replace_where(tensor: Tensor, where: Tensor, others: Tensor) -> Tensor:
    """``tensor`` with the elements of ``others`` that ``where`` names, in the same layout. Differentiable."""
    result: Tensor = _ReplaceWhere.apply(tensor, where, others)  # type: ignore[no-untyped-call]
    return result


def copy_if_overlapping(tensor: Tensor) -> Tensor:
    """The tensor itself; a contiguous copy where elements share memory, as those of overlapping windows do.

    Whole dimensions that were expanded may stay so. A negation that torch has put off is done.
    """
    tensor = tensor.resolve_neg()
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if 0 < stride <= reach and size > 1:
            return tensor.contiguous()
        reach += stride * (size - 1)
    return tensor


@final
class _ZeroWhere(torch.autograd.Function):
    """``zero_where``: the gradient is 0 where the number was."""

    @staticmethod
    def forward(tensor: Tensor, where: Tensor) -> Tensor:
        """A copy of the same layout, with zeros in the named elements."""
        return _where_same_layout(tensor, where, tensor.new_zeros(()))

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save the places for the backward pass."""
        del output
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """The gradient, with the same zeros."""
        (where,) = ctx.saved_tensors
        return gradients[0].masked_fill(where, 0.0), None


@final
class _ReplaceWhere(torch.autograd.Function):
    """``replace_where``: the kernel's backward pass is given a gradient of the layout that arrived."""

    @staticmethod
    def forward(tensor: Tensor, where: Tensor, others: Tensor) -> Tensor:
        """A copy of the same layout, with the other tensor's elements in the named places."""
        return _where_same_layout(tensor, where, others)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save the places for the backward pass."""
        del output
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor]:
        """The gradients of the tensor and of the others, each 0 where the other one was used."""
        (gradient,), (where,) = gradients, ctx.saved_tensors
        return zero_where(copy_if_overlapping(gradient), where), None, gradient.masked_fill(~where, 0.0)


def _where_same_layout(tensor: Tensor, where: Tensor, others: Tensor) -> Tensor:
    """``others`` where ``where`` says so, and else ``tensor``, in the layout of ``tensor``.

    Where elements that are one in memory get different values, the copy is contiguous.
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
    return copy.expand_as(tensor)


def _narrow_to_first(dims: list[int], tensor: Tensor) -> Tensor:
    """The first element along some dimensions."""
    for dim in dims:
        tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _is_constant_along(dim: int, tensor: Tensor) -> bool:
    """Whether all elements along a dimension are equal."""
    return tensor.stride(dim) == 0 or bool((tensor == tensor.narrow(dim, 0, 1)).all())


def _empty_same_layout(tensor: Tensor) -> Tensor:
    """Memory with the strides of a tensor, and as far from a multiple of the alignment; its gaps are never read."""
    extent = 1 + sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    item = tensor.element_size()
    if tensor.data_ptr() % item:  # amid an element, where only a buffer can begin
        octets = np.empty(extent * item + _ALIGNMENT, np.uint8)
        start = (tensor.data_ptr() - octets.ctypes.data) % _ALIGNMENT
        memory = torch.frombuffer(octets, dtype=tensor.dtype, count=extent, offset=start)
        return memory.as_strided(tensor.shape, tensor.stride())
    memory = tensor.new_empty(extent + _ALIGNMENT // item)
    first = (tensor.data_ptr() - memory.data_ptr()) % _ALIGNMENT // item
    return memory.as_strided(tensor.shape, tensor.stride(), first)
