"""``python -m benchmarks.devices.measure PIECE FILE``: measure the cases of a piece, and write their rows.

A contestant whose result is wrong gets no time. One that refuses, or lacks memory, gets the reason.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks import atomic_write
from benchmarks.devices.cases import CASES, Call, DeviceCase
from benchmarks.devices.device import fastest_dtype, find_device, is_stand_in
from benchmarks.devices.timing import measure_peaks, time_calls
from regard.devices import counts_peak_bytes, measure_peak_bytes
from regard.errors import RegardError, first_line

_SECONDS = 2.0
_REFUSALS = (RegardError, RuntimeError, ImportError, NotImplementedError, ValueError, TypeError)


def measure_piece(name: str, device: torch.device) -> dict[str, Any]:
    """The peaks of the device, and a row for each case."""
    seconds = 0.01 if is_stand_in(device) else _SECONDS
    return {
        "dtype": str(fastest_dtype(device)).removeprefix("torch."),
        "peaks": measure_peaks(device, fastest_dtype(device), seconds=seconds),
        "rows": [_measure_case(case, device, seconds) for case in CASES[name](device)],
    }


def _measure_case(case: DeviceCase, device: torch.device, seconds: float) -> dict[str, Any]:
    ready: dict[str, Call] = {}
    refused: dict[str, str] = {}
    wrong: dict[str, str] = {}
    peaks: dict[str, int] = {}
    expected = None if case.exact is None else case.exact()
    for name, prepare in case.contestants.items():
        try:
            call = prepare()
            error = None if expected is None else _largest_error(case.rows_of(call()), expected)
            if counts_peak_bytes(device):
                peaks[name] = measure_peak_bytes(call, device)
        except _REFUSALS as failure:
            refused[name] = first_line(failure, 160) or type(failure).__name__
            continue
        if error is not None and not error <= _tolerance(device):
            wrong[name] = f"off by {error:.2g}, allowed {_tolerance(device):.2g}"
            continue
        ready[name] = call
    times = time_calls(ready, device, seconds=seconds) if ready else {}
    return {
        "case": case.name,
        "length": case.length,
        "operations": case.operations,
        "bytes": case.bytes,
        "times": times,
        "peak bytes": peaks,
        "refused": refused,
        "wrong": wrong,
    }


def _largest_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest number."""
    return float((found.to(expected.dtype) - expected).abs().max() / expected.abs().max())


def _tolerance(device: torch.device) -> float:
    """Eight roundings of the largest number in the dtype of the measurement: a product, the weights, and the output."""
    return 8 * torch.finfo(fastest_dtype(device)).eps


def main() -> None:
    """Measure the piece that the command names."""
    name, output = sys.argv[1:]
    device = find_device()
    assert device is not None, "the program that starts the pieces has looked"
    atomic_write.write(Path(output), json.dumps(measure_piece(name, device), indent=1) + "\n")


if __name__ == "__main__":
    main()
