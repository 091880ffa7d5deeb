"""The devices of this machine: which there are, which one "auto" takes, and how tensors get there.

    cpu     always there
    cuda    GPUs of NVIDIA, and of AMD, which torch's build for ROCm calls by the same name
    xpu     GPUs of Intel
    mps     the GPU of Apple's processors, which has no float64

Nothing here asks for a kind of device by name where torch has one function for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from regard.device_names import AUTO
from regard.errors import DeviceError, first_line, short_repr
from regard.log import log
from regard.masks.as_tensor import as_device

Result = TypeVar("Result")
_WITHOUT_FLOAT64 = ("mps",)
_ERRORS = (RuntimeError, AssertionError, NotImplementedError)  # which torch raises for missing devices


def list_devices() -> list[str]:
    """Names of the devices that torch finds on this machine, the CPU first: "cpu", "cuda:0", "cuda:1"."""
    accelerator = find_accelerator()
    if accelerator is None:
        return ["cpu"]
    return ["cpu", *(f"{accelerator.type}:{number}" for number in range(torch.accelerator.device_count()))]


def find_accelerator() -> torch.device | None:
    """The kind of accelerator that torch finds on this machine; None without one."""
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def resolve_device(device: Any) -> torch.device:
    """The torch.device of ``device``; None is the CPU, and "auto" the accelerator of this machine, or else the CPU.

    Notes which accelerator "auto" took, or why it took none of those that torch finds. Raises DeviceError if no tensor
    can be made on the device.
    """
    if isinstance(device, str) and device == AUTO:
        return _choose_device()
    try:
        target = as_device(device) or torch.device("cpu")
        torch.empty(1, device=target)
    except (DeviceError, *_ERRORS) as error:
        cause = error.__cause__ if isinstance(error, DeviceError) else error
        raise DeviceError(
            f"cannot use device {short_repr(device)}",
            expected=f"a device of this machine: {', '.join(list_devices())}; or {AUTO}",
            got=_describe_failure(device, cause),
            do=f'use `device="{AUTO}"`, which takes an accelerator if there is one',
        ) from error
    return target


def _describe_failure(device: Any, error: BaseException | None) -> str:
    """Why torch makes no tensor on a device; in its own words for a kind of device that it finds on this machine."""
    accelerator = find_accelerator()
    try:
        kind = torch.device(device).type
    except (RuntimeError, TypeError, ValueError):
        return short_repr(device)
    if kind != "cpu" and (accelerator is None or accelerator.type != kind):
        return f"torch {torch.__version__} finds no device of the kind {kind!r}"
    assert error is not None
    return first_line(error, 120) or type(error).__name__


def _choose_device() -> torch.device:
    """The accelerator, if there is one and a tensor can be made on it; else the CPU."""
    accelerator = find_accelerator()
    if accelerator is None:
        return torch.device("cpu")
    try:
        torch.empty(1, device=accelerator)
    except _ERRORS as error:
        log.info(f"computing on the CPU, since {accelerator.type} cannot be used: {first_line(error, 120)}")
        return torch.device("cpu")
    log.info(f'computing on {accelerator.type} ({describe_device(accelerator)}); `device="cpu"` computes on the CPU')
    return accelerator


def describe_device(device: torch.device | str) -> str:
    """The name of a device as its maker calls it, such as "NVIDIA H200"; its kind where torch has no name."""
    kind = torch.device(device)
    if kind.type == "cpu":
        return "the CPU"
    if kind.type == "mps":
        return "the GPU of this Apple processor"
    find_name = getattr(torch.get_device_module(kind), "get_device_name", None)
    return kind.type if find_name is None else str(find_name(kind))


def has_float64(device: torch.device) -> bool:
    """Whether a device computes in float64."""
    return device.type not in _WITHOUT_FLOAT64


def to_float64(tensor: Tensor) -> Tensor:
    """The tensor in float64, on its device, or on the CPU where the device has no float64."""
    return tensor.double() if has_float64(tensor.device) else tensor.cpu().double()


def launch_ahead(results: Iterable[Result], device: torch.device) -> Iterator[Result]:
    """Yield the results of calls, each after the call that follows it was made; on a CPU, as they come.

    An accelerator computes after a call has returned. Whoever reads a result waits for it: by then the next call is
    queued, so that the accelerator goes on computing meanwhile. Two results take memory at a time.
    """
    if device.type == "cpu":
        yield from results
        return
    waiting: list[Result] = []
    for result in results:
        waiting.append(result)
        if len(waiting) > 1:
            yield waiting.pop(0)
    yield from waiting


def counts_peak_bytes(device: torch.device) -> bool:
    """Whether torch counts how much memory of a device is in use at most; it does not for CPUs and for Apple's GPUs."""
    return device.type != "cpu" and hasattr(torch.get_device_module(device), "max_memory_allocated")


def measure_peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """Measure what the second call adds to the memory of a device at most: the first one also loads kernels."""
    module = torch.get_device_module(device)
    call()
    module.reset_peak_memory_stats(device)
    before = module.memory_allocated(device)
    call()
    return int(module.max_memory_allocated(device) - before)


def wait_for(device: torch.device) -> None:
    """Wait until a device has computed what was asked of it; a CPU computes while it is called."""
    if device.type not in ("cpu", "meta"):
        torch.get_device_module(device).synchronize()
