"""What a caller gives to a mask, as a tensor that is the mask's own: tensors, arrays, and lists of numbers."""

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
from regard.errors import DeviceError, DtypeError, OptionError, short_repr
from regard.tensors import check_dense, has_values, is_traced


def as_tensor(given: Any, name: str, expected: str) -> Tensor:
    """``given`` as a dense tensor that shares no memory with it.

    Raises DtypeError, with ``name`` and what was ``expected``, where it cannot be one.
    """
    try:
        tensor = _to_tensor(given, name)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise DtypeError(
            f"{name} cannot be made a tensor",
            expected=expected,
            got=short_repr(given),
            do="give a tensor, an array, or a list of rows of one length",
        ) from error
    check_dense(name, tensor)
    return _detached_copy(tensor)


def as_integers(given: Any, name: str, expected: str, do: str) -> Int[Tensor, "..."]:
    """``given`` as int64. Raises DtypeError for what is no tensor of integers, OptionError for one beyond 64 bits."""
    tensor = as_tensor(given, name, expected)
    if is_integer_tensor(tensor):
        whole = tensor.long()
        if tensor.dtype != torch.uint64 or not has_values(tensor) or not bool((whole < 0).any()):
            return whole
        raise OptionError(f"{name} holds a number beyond 64 bits", expected=expected, got="2**63 or more", do=do)
    raise DtypeError(f"{name}: whole numbers are needed", expected=expected, got=str(tensor.dtype), do=do)


def is_integer_tensor(tensor: Tensor) -> bool:
    """Whether its dtype is of integers; an empty one, such as that of ``[]``, may have any."""
    inexact = tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool
    return not inexact or tensor.numel() == 0


def as_device(device: Any) -> torch.device | None:
    """A device as torch has it. Raises DeviceError for what is none, and for one that this torch cannot use."""
    if device is None or (isinstance(device, torch.device) and device.type in ("cpu", "meta")):
        return device
    try:
        named = torch.device(device)
        torch.empty(0, device=named)
    # torch raises RuntimeError, AssertionError or NotImplementedError for a device it lacks, and others for none.
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError) as error:
        raise DeviceError(
            "there is no such device",
            expected="a torch.device, or its name",
            got=short_repr(device),
            do='for example device="cpu"',
        ) from error
    return named


def to_device(tensor: Tensor, device: torch.device | str | None) -> Tensor:
    """A mask's tensor where it is used: on a device, None where it is, and inside ``FakeTensorMode`` a fake of it.

    Raises DeviceError for what is no device, and for a tensor on "meta", which has no numbers to move.
    """
    if not torch.compiler.is_compiling() and torch._C._len_torch_dispatch_stack() > 0:
        mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
        if isinstance(mode, FakeTensorMode) and not mode.allow_non_fake_inputs and not isinstance(tensor, FakeTensor):
            tensor = mode.from_tensor(tensor)
    device = as_device(device)
    if device is None or not tensor.is_meta or device.type == "meta":
        return tensor.to(device)
    raise DeviceError(
        'the mask was made from a tensor on "meta", which holds no numbers',
        expected='a mask made from numbers, or tensors on "meta"',
        got=f"{tuple(tensor.shape)} on {tensor.device}, wanted on {device}",
        do="build the mask from tensors on the device it is used on",
    )


def whole(number: Any) -> int:
    """A number that was checked, as Python's own integer; an integer of a trace as it is."""
    return int(number) if isinstance(number, Integral) else number


def _to_tensor(given: Any, name: str) -> Tensor:
    if isinstance(given, Tensor):
        return given
    if isinstance(given, np.ndarray):
        return tensor_from_numpy(given)
    if is_foreign(given):
        return tensor_of_array(given, name)
    return torch.as_tensor(given, device="cpu")  # whatever the default device is: masks follow their tensors


def _detached_copy(tensor: Tensor) -> Tensor:
    """A copy that any later call may use, also where this one is in inference mode."""
    if is_traced():
        return tensor.clone()
    with torch.inference_mode(False):
        return tensor.detach().clone()
