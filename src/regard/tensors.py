"""Checks of tensors before computation: is it a tensor, is it dense, can its values be read."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from regard.errors import DtypeError, short_repr

_TRACING_MODES = (
    torch._C._TorchDispatchModeKey.FAKE,
    torch._C._TorchDispatchModeKey.PROXY,
    torch._C._TorchDispatchModeKey.FUNCTIONAL,
)

_FEW = 64
"""Number of elements up to which a list is faster than an operation of torch."""


def is_traced() -> bool:
    """Whether torch is tracing: tensors have no values now, or operations are recorded to run later."""
    return (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or (
            torch._C._len_torch_dispatch_stack() > 0
            and any(torch._C._get_dispatch_mode(mode) is not None for mode in _TRACING_MODES)
        )
    )


def has_values(tensor: Tensor) -> bool:
    """Whether the values of ``tensor`` can be read: not while torch traces, inside torch.func, or on "meta"."""
    return not (
        is_traced()
        or tensor.is_meta
        or isinstance(tensor, FakeTensor)
        or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def least_and_greatest(integers: Tensor) -> tuple[int, int]:
    """The least and the greatest of one or more integers, whose values can be read."""
    if integers.numel() <= _FEW and integers.is_cpu:  # as in a decoding step: torch takes ten times as long
        values = integers.flatten().tolist()
        return min(values), max(values)
    smallest, largest = integers.aminmax()
    return int(smallest), int(largest)


def is_dense(tensor: Tensor) -> bool:
    """Whether ``tensor`` stores every element in strided memory: not sparse, nested, quantized or in another layout."""
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized


def check_dense(name: str, tensor: Tensor) -> None:
    """Raise DtypeError for a tensor that is not dense."""
    if is_dense(tensor):
        return
    if tensor.is_nested:
        got, do = "a nested tensor", "pad sequences to one length and pass mask=masks.padding(lengths)"
    elif tensor.is_quantized:
        got, do = f"a quantized tensor, {tensor.dtype}", "convert it with .dequantize()"
    else:
        got, do = f"layout {tensor.layout}", "convert it with .to_dense()"
    raise DtypeError(
        f"{name} is not a dense tensor",
        expected="all numbers in memory (torch.strided), neither sparse nor nested nor quantized",
        got=got,
        do=do,
    )


def check_tensor(name: str, tensor: object, expected: str, *, do: str = "use torch.as_tensor") -> None:
    """Raise DtypeError, with what was ``expected`` and what to ``do``, unless ``tensor`` is a dense tensor."""
    if not isinstance(tensor, Tensor):
        raise DtypeError(f"{name} is not a tensor", expected=expected, got=short_repr(tensor), do=do)
    check_dense(name, tensor)
