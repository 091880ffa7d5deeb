"""Check whether time or memory grows linearly with length.

    time      median at the last length / median at the first     at most 1.25 times the ratio of the lengths
    memory    peak at the last length / peak at the first         likewise

Memory is the peak resident memory of a fresh process that prepares the case and solves it once:

    python -m benchmarks.scaling training "fp32 dropout 1024" native

The process may use at most half of the machine's memory.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks.case import ScalingTarget, Suite

_ROOT = Path(__file__).resolve().parents[1]
_EXIT_REFUSED, _EXIT_OUT_OF_MEMORY = 2, 3
_EXIT_REASONS = {_EXIT_REFUSED: "it refuses", _EXIT_OUT_OF_MEMORY: "it needs more than half of the machine's memory"}
"""Meanings of the exit codes of a measuring process."""


@dataclass(frozen=True)
class ScalingResult:
    """Seconds or bytes of each case and contestant, and whether the growth is linear.

    ``missing`` are those that could not be measured, with the reason.
    """

    what: str
    cases: tuple[str, ...]
    lengths: tuple[int, ...]
    measured: dict[str, list[float]]
    growth: dict[str, float]
    linear: dict[str, bool]
    within: float
    missing: dict[str, str] = field(default_factory=dict)


class _MeasurementError(Exception):
    """A process that should measure memory ended without a result."""


def judge_time_scaling(
    growth: ScalingTarget, suite: Suite, medians: Mapping[str, Mapping[str, float]]
) -> ScalingResult | None:
    """Judge growth of time from the medians, by case and contestant; None if one is missing."""
    name = growth.contestants[0]
    if not all(name in medians.get(case, {}) for case in growth.cases):
        return None
    lengths = tuple(suite.case(case).length for case in growth.cases)
    times = [medians[case][name] for case in growth.cases]
    factor = growth_factor(times, lengths)
    allowed = growth.allowed_factor(lengths)
    return ScalingResult(
        "time", growth.cases, lengths, {name: times}, {name: factor}, {name: factor <= allowed}, allowed
    )


def growth_factor(measured: Sequence[float], lengths: Sequence[int]) -> float:
    """Growth from the first to the last value, divided by the growth of the length."""
    return measured[-1] / measured[0] / (lengths[-1] / lengths[0])


def measure_memory_scaling(growth: ScalingTarget, suite: Suite) -> ScalingResult:
    """Judge growth of memory, with a new process for each case and contestant."""
    lengths = tuple(suite.case(case).length for case in growth.cases)
    measured: dict[str, list[float]] = {}
    missing: dict[str, str] = {}
    for name in growth.contestants:
        try:
            measured[name] = [_measure_peak_in_subprocess(suite.name, case, name) for case in growth.cases]
        except _MeasurementError as error:
            missing[name] = str(error)
    factors = {name: growth_factor(peaks, lengths) for name, peaks in measured.items()}
    allowed = growth.allowed_factor(lengths)
    linear = {name: factor <= allowed for name, factor in factors.items()}
    return ScalingResult("memory", growth.cases, lengths, measured, factors, linear, allowed, missing)


def _measure_peak_in_subprocess(suite: str, case: str, contestant: str) -> float:
    """Measure the peak in bytes in a new process. Raises _MeasurementError if the process ends without a result."""
    command = [sys.executable, "-m", "benchmarks.scaling", suite, case, contestant]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        last_line = next(iter(reversed(done.stderr.strip().splitlines())), "")
        raise _MeasurementError(_EXIT_REASONS.get(done.returncode, f"failed on {case}: {last_line}"))
    return float(done.stdout)


def measure_peak_memory(suite: Suite, case: str, contestant: str) -> int:
    """Peak resident memory that preparing and solving a case once added, in bytes."""
    torch.nn.functional.scaled_dot_product_attention(*torch.randn(3, 1, 2, 16, 8))  # starts the threads
    _reset_peak_memory()
    before = _read_peak_memory()
    suite.case(case).prepare().contestants[contestant]().run()
    return _read_peak_memory() - before


def _reset_peak_memory() -> None:
    """Reset the peak to the current memory, if the system supports it."""
    file = Path("/proc/self/clear_refs")
    if file.exists():
        file.write_text("5", encoding="ascii")


def _read_peak_memory() -> int:
    """Peak resident memory so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def _limit_memory() -> None:
    """Limit memory to half of the machine's, so that an allocation fails before the system kills other processes."""
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    resource.setrlimit(resource.RLIMIT_DATA, (half, half))


def main() -> int:
    """Print the peak in bytes; exit code 2 if the contestant refuses, 3 if it needs too much memory."""
    from benchmarks.suites import SUITES
    from regard.errors import RegardError

    suite, case, contestant = sys.argv[1:]
    _limit_memory()
    try:
        print(measure_peak_memory(SUITES[suite], case, contestant))
    except (RegardError, NotImplementedError):
        return _EXIT_REFUSED
    except (MemoryError, RuntimeError) as error:  # torch raises RuntimeError if memory runs out
        if isinstance(error, RuntimeError) and "alloc" not in str(error):
            raise
        return _EXIT_OUT_OF_MEMORY
    return 0


if __name__ == "__main__":
    sys.exit(main())
