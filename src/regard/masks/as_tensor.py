"""Conversion of a caller's tensors, arrays and lists of numbers to tensors that a mask owns."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from regard.arrays import as_tensor as tensor_of_array
from regard.arrays import is_foreign, tensor_from_numpy
from regard.copy_to_device import copy_to
from regard.errors import DeviceError, DtypeError, OptionError, short_repr
from regard.tensors import check_dense, has_values, is_traced


def as_tensor(given: Any, name: str, expected: str) -> Tensor:
    """Convert ``given`` to a dense tensor that shares no memory with it.

    Raises DtypeError, with ``name`` and what was ``expected``, if that is impossible.
    """
    try:
        tensor = _to_tensor(given, name)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise DtypeError(
            f"{name} cannot be converted to a tensor",
            expected=expected,
            got=short_repr(given),
            do="pass a tensor, an array, or a list of rows of equal length",
        ) from error
    check_dense(name, tensor)
    return _detached_copy(tensor)


def as_integers(given: Any, name: str, expected: str, do: str) -> Int[Tensor, "..."]:
    """Convert ``given`` to int64. Raises DtypeError if it is not integers, OptionError for values beyond 64 bits."""
    tensor = as_tensor(given, name, expected)
    if is_integer_tensor(tensor):
        whole = tensor.long()
        if tensor.dtype != torch.uint64 or not has_values(tensor) or not bool((whole < 0).any()):
            return whole
        raise OptionError(f"{name} contains a number beyond 64 bits", expected=expected, got="2**63 or more", do=do)
    raise DtypeError(f"{name} must be integers", expected=expected, got=str(tensor.dtype), do=do)


def is_integer_tensor(tensor: Tensor) -> bool:
    """Whether ``tensor`` has an integer dtype; an empty one, such as from ``[]``, may have any dtype."""
    inexact = tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool
    return not inexact or tensor.numel() == 0


def as_device(device: Any) -> torch.device | None:
    """Convert ``device`` to a torch.device. Raises DeviceError if it is invalid, or if this torch cannot use it."""
    if device is None or (isinstance(device, torch.device) and device.type in ("cpu", "meta")):
        return device
    try:
        named = torch.device(device)
        torch.empty(0, device=named)
    # torch raises RuntimeError, AssertionError or NotImplementedError for missing devices, the others for invalid ones.
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError) as error:
        raise DeviceError(
            "unknown or unavailable device",
            expected="a torch.device, or its name",
            got=short_repr(device),
            do='for example "cpu"',
        ) from error
    return named


def to_device(tensor: Tensor, device: torch.device | str | None) -> Tensor:
    """Move a mask's tensor to ``device`` (None: leave it), and inside ``FakeTensorMode`` make it a fake tensor.

    Raises DeviceError for an invalid device, and for a tensor on "meta", which has no values to move.
    """
    if not torch.compiler.is_compiling() and torch._C._len_torch_dispatch_stack() > 0:
        mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
        if isinstance(mode, FakeTensorMode) and not mode.allow_non_fake_inputs and not isinstance(tensor, FakeTensor):
            tensor = mode.from_tensor(tensor)
    device = as_device(device)
    if device is None or not tensor.is_meta or device.type == "meta":
        return tensor if device is None else copy_to(tensor, device)
    raise DeviceError(
        'the mask was made from a tensor on "meta", which has no values',
        expected='a mask made from values, or all tensors on "meta"',
        got=f"{tuple(tensor.shape)} on {tensor.device}, needed on {device}",
        do="build the mask from tensors on the device where it is used",
    )


def whole(number: Any) -> int:
    """Convert a checked integer to Python's int; a symbolic integer of a trace is returned unchanged."""
    return int(number) if isinstance(number, Integral) else number


def _to_tensor(given: Any, name: str) -> Tensor:
    if isinstance(given, Tensor):
        return given
    if isinstance(given, np.ndarray):
        return tensor_from_numpy(given)
    if is_foreign(given):
        return tensor_of_array(given, name)
    return torch.as_tensor(given, device="cpu")  # not on torch's default device: masks move to where they are used


def _detached_copy(tensor: Tensor) -> Tensor:
    """Copy a tensor so that any later call may use it, even if this call is in inference mode."""
    if is_traced():
        return tensor.clone()
    with torch.inference_mode(False):
        return tensor.detach().clone()
