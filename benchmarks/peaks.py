"""Measure the machine's peak rates beside the contestants (see ``peaks.cpp``).

    multiply-add fp32     fused multiply-adds on registers, all cores         GFLOP/s
    dot bf16              vdpbf16ps on registers, all cores                   GFLOP/s, if the CPU supports it
    matrix bf16           tdpbf16ps on registers, all cores                   GFLOP/s, if the CPU has a matrix unit
    matrix product fp32   torch's product of two matrices of 1,024 x 1,024    GFLOP/s
    read N MB             reading a buffer of that size repeatedly       GB/s
    read memory           reading a buffer far larger than the last cache     GB/s

The product of matrices is no bound, but what a tuned library reaches, which reads its operands from caches as every
kernel does. On a core that is shared with another virtual machine it may be half of the rate on registers.

Needs a C++ compiler (``CXX``, or c++, g++ or clang++ on the path); without a compiler, no share of a peak is reported.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("peaks.cpp")
MEMORY_BYTES = 1 << 30
"""Bytes of a buffer far larger than the last-level cache."""
_ARITHMETIC_SECONDS, _READ_SECONDS = 0.03, 0.06
_PRODUCT_WIDTH = 1024


@final
@dataclass(frozen=True)
class Peak:
    """One peak rate of the machine: of arithmetic, or of reading ``bytes`` (0: arithmetic)."""

    name: str
    bytes: int = 0


MULTIPLY_ADD = Peak("multiply-add fp32")
DOT_BF16 = Peak("dot bf16")
MATRIX_BF16 = Peak("matrix bf16")
MATRIX_PRODUCT = Peak("matrix product fp32")
READ_MEMORY = Peak("read memory", MEMORY_BYTES)
_FUNCTIONS = {MULTIPLY_ADD: "multiply_add", DOT_BF16: "dot_bf16", MATRIX_BF16: "matrix_bf16"}


def read_peak(size: int) -> Peak:
    """Return the peak for reading a buffer of ``size`` bytes."""
    return Peak(f"read {size / 1e6:.0f} MB", size)


def arithmetic_peak(dtype: torch.dtype) -> Peak:
    """Return the peak for kernels of ``dtype``: float32's for bf16, if the CPU has no faster bf16 product."""
    if dtype != torch.bfloat16:
        return MULTIPLY_ADD
    if _has(MATRIX_BF16):
        return MATRIX_BF16
    return DOT_BF16 if _dot_is_faster() else MULTIPLY_ADD


def arithmetic_peaks(dtype: torch.dtype) -> tuple[Peak, ...]:
    """Return the peak for kernels of ``dtype``; if that is float32's, also the rate of torch's product of matrices."""
    peak = arithmetic_peak(dtype)
    return (peak, MATRIX_PRODUCT) if peak == MULTIPLY_ADD else (peak,)


def _has(peak: Peak) -> bool:
    """Whether the CPU has the instruction of a peak of arithmetic."""
    library = _load_library()
    return library is not None and float(_function(library, peak)(1, ctypes.c_double(0.0))) > 0


def _function(library: ctypes.CDLL, peak: Peak) -> Any:
    return getattr(library, f"regard_peak_{_FUNCTIONS[peak]}")


@cache
def _dot_is_faster() -> bool:
    """Whether bf16 dot products are faster: on some CPUs they are slower than float32. The difference is large."""
    if not _has(DOT_BF16):
        return False
    measures = [make_probe(peak) for peak in (DOT_BF16, MULTIPLY_ADD)]
    dot, single = (max(measure() for _ in range(3)) for measure in measures if measure is not None)
    return dot > single


def make_probe(peak: Peak) -> Callable[[], float] | None:
    """Return a function that measures the peak once, in 1e9 per second; None without a compiler."""
    library = _load_library()
    if library is None:
        return None
    threads = torch.get_num_threads()
    if peak == MATRIX_PRODUCT:
        return _measure_product
    if peak.bytes:
        return lambda: _measure_read(library, threads, _make_buffer(peak.bytes))
    measure = _function(library, peak)
    return lambda: float(measure(threads, ctypes.c_double(_ARITHMETIC_SECONDS)))


def measure_peaks() -> dict[str, float]:
    """Return the medians of a few measurements of the machine's peaks, in 1e9 per second."""
    found = {}
    for peak in (MULTIPLY_ADD, *filter(_has, (DOT_BF16, MATRIX_BF16)), MATRIX_PRODUCT, READ_MEMORY):
        measure = make_probe(peak)
        if measure is not None:
            found[peak.name] = statistics.median(measure() for _ in range(7))
    return found


def _measure_read(library: ctypes.CDLL, threads: int, buffer: Tensor) -> float:
    """Measure reading in both ways, and return the faster rate."""
    start, size = ctypes.c_void_p(buffer.data_ptr()), ctypes.c_int64(buffer.numel())
    seconds = ctypes.c_double(_READ_SECONDS)
    return max(float(library.regard_peak_read(threads, seconds, start, size, in_pieces)) for in_pieces in (0, 1))


def _measure_product() -> float:
    """Multiply two matrices once."""
    left, right, product = _make_matrices()
    start = time.perf_counter()
    torch.mm(left, right, out=product)
    return 2.0 * _PRODUCT_WIDTH**3 / (time.perf_counter() - start) / 1e9


@cache
def _make_matrices() -> tuple[Tensor, Tensor, Tensor]:
    left, right = torch.ones(2, _PRODUCT_WIDTH, _PRODUCT_WIDTH)
    return left, right, left @ right


@cache
def _make_buffer(size: int) -> Tensor:
    return torch.ones(size, dtype=torch.int8)


@cache
def _load_library() -> ctypes.CDLL | None:
    """Compile ``peaks.cpp`` in a temporary folder and load it."""
    compiler = os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    if compiler is None or platform.system() == "Windows":
        return None
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "peaks.so"
        flags = ["-O3", "-std=c++17", "-ffp-contract=fast", "-shared", "-fPIC"]
        openmp = ["-fopenmp"] if platform.system() == "Linux" else []
        built = subprocess.run([compiler, *flags, *openmp, str(SOURCE), "-o", str(target)], capture_output=True)
        if built.returncode != 0:
            return None
        library = ctypes.CDLL(str(target))
    for name in (*_FUNCTIONS.values(), "read"):
        getattr(library, f"regard_peak_{name}").restype = ctypes.c_double
    return library
