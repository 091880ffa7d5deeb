"""Whether time or memory grows as length does.

    time      median at the last length / median at the first     at most 1.25 times the ratio of the lengths
    memory    peak at the last length / peak at the first         likewise

Memory is the peak resident memory of a fresh process that prepares the case and solves it once:

    python -m benchmarks.scaling training "fp32 dropout 1024" native

It may take half of the machine's memory, and no more.
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
"""What the codes mean with which a measuring process ends."""


@dataclass(frozen=True)
class ScalingResult:
    """What was measured: seconds or bytes of each case and contestant, and whether that is linear.

    ``missing`` names those that could not be measured, with the reason.
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
    """A process that was to measure memory ended without doing so."""


def judge_time_scaling(
    growth: ScalingTarget, family: Suite, medians: Mapping[str, Mapping[str, float]]
) -> ScalingResult | None:
    """From the medians of the cases, by case and contestant; None where one is missing."""
    name = growth.contestants[0]
    if not all(name in medians.get(case, {}) for case in growth.cases):
        return None
    lengths = tuple(family.case(case).length for case in growth.cases)
    times = [medians[case][name] for case in growth.cases]
    factor = growth_factor(times, lengths)
    return ScalingResult(
        "time", growth.cases, lengths, {name: times}, {name: factor}, {name: factor <= growth.within}, growth.within
    )


def growth_factor(measured: Sequence[float], lengths: Sequence[int]) -> float:
    """How much faster than length something grew, from the first to the last."""
    return measured[-1] / measured[0] / (lengths[-1] / lengths[0])


def measure_memory_scaling(growth: ScalingTarget, family: Suite) -> ScalingResult:
    """By a fresh process for each case and contestant."""
    lengths = tuple(family.case(case).length for case in growth.cases)
    measured: dict[str, list[float]] = {}
    missing: dict[str, str] = {}
    for name in growth.contestants:
        try:
            measured[name] = [_measure_peak_in_subprocess(family.name, case, name) for case in growth.cases]
        except _MeasurementError as error:
            missing[name] = str(error)
    factors = {name: growth_factor(peaks, lengths) for name, peaks in measured.items()}
    linear = {name: factor <= growth.within for name, factor in factors.items()}
    return ScalingResult("memory", growth.cases, lengths, measured, factors, linear, growth.within, missing)


def _measure_peak_in_subprocess(family: str, case: str, contestant: str) -> float:
    """The peak in bytes, from a fresh process. Raises _NotMeasuredError where that ends without one."""
    command = [sys.executable, "-m", "benchmarks.scaling", family, case, contestant]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        last_line = next(iter(reversed(done.stderr.strip().splitlines())), "")
        raise _MeasurementError(_EXIT_REASONS.get(done.returncode, f"failed on {case}: {last_line}"))
    return float(done.stdout)


def measure_peak_memory(family: Suite, case: str, contestant: str) -> int:
    """Bytes of resident memory that preparing and solving a case once added at its peak."""
    torch.nn.functional.scaled_dot_product_attention(*torch.randn(3, 1, 2, 16, 8))  # starts the threads
    _reset_peak_memory()
    before = _read_peak_memory()
    family.case(case).prepare().contestants[contestant]().run()
    return _read_peak_memory() - before


def _reset_peak_memory() -> None:
    """Let the peak be what is held now, where the system can."""
    file = Path("/proc/self/clear_refs")
    if file.exists():
        file.write_text("5", encoding="ascii")


def _read_peak_memory() -> int:
    """The largest resident memory so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def _limit_memory() -> None:
    """Let an allocation beyond half of the machine's memory fail, before the system ends processes of others."""
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    resource.setrlimit(resource.RLIMIT_DATA, (half, half))


def main() -> int:
    """The exit code: 2 where the contestant refuses, 3 where it needs too much; else the peak in bytes is printed."""
    from benchmarks.suites import SUITES
    from regard.errors import RegardError

    family, case, contestant = sys.argv[1:]
    _limit_memory()
    try:
        print(measure_peak_memory(SUITES[family], case, contestant))
    except (RegardError, NotImplementedError):
        return _EXIT_REFUSED
    except (MemoryError, RuntimeError) as error:  # torch raises RuntimeError for memory it cannot have
        if isinstance(error, RuntimeError) and "alloc" not in str(error):
            raise
        return _EXIT_OUT_OF_MEMORY
    return 0


if __name__ == "__main__":
    sys.exit(main())
