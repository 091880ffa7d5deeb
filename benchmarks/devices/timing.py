"""Time calls on a device in turns, and the rates of the device that their times are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.devices.device import is_stand_in
from benchmarks.timing import time_interleaved
from regard.devices import wait_for


def time_calls(
    calls: Mapping[str, Callable[[], object]], device: torch.device, *, seconds: float
) -> dict[str, dict[str, float]]:
    """The median seconds of each call, with its quartiles; a call ends when the device has computed it."""

    def until_computed(call: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            call()
            wait_for(device)

        return run

    for call in calls.values():
        until_computed(call)()  # compiles kernels
    times, _ = time_interleaved({name: until_computed(call) for name, call in calls.items()}, {}, seconds=seconds)
    return {name: {"seconds": found.median, "low": found.low, "high": found.high} for name, found in times.items()}


def measure_peaks(device: torch.device, dtype: torch.dtype, *, seconds: float) -> dict[str, Any]:
    """The rates that torch reaches: operations per second in a product of matrices, and bytes per second in a copy."""
    size, numbers = (257, 1_000_003) if is_stand_in(device) else (8192, 268_435_456)
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    source = torch.zeros(numbers, device=device, dtype=torch.int32)
    target = torch.empty_like(source)
    found = time_calls({"product": lambda: left @ right, "copy": lambda: target.copy_(source)}, device, seconds=seconds)
    return {
        "operations per second": 2 * size**3 / found["product"]["seconds"],
        "bytes per second": 2 * source.numel() * source.element_size() / found["copy"]["seconds"],
    }
