"""Energy in joules, where the machine counts it.

    a CPU          Linux's counters of all processor packages, /sys/class/powercap/intel-rapl:N (RAPL: Intel and AMD)
    a CUDA device  NVML's total of the GPU, by the package nvidia-ml-py

A counter counts all that its chip does, other programs included. The counter of a package starts again at 0 after its
range: minutes at full load, so a meter is read more often than that.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

_POWERCAP = Path("/sys/class/powercap")
_MICROJOULE, _MILLIJOULE = 1e-6, 1e-3


@final
@dataclass
class _Counter:
    """A counter of energy in multiples of ``unit`` joules; ``limit`` is its largest value, None if it never wraps."""

    read: Callable[[], int]
    unit: float
    limit: int | None
    last: int = 0
    joules: float = 0.0

    def advance(self) -> float:
        """Add what was counted since the last reading, and return the joules since the first."""
        value = self.read()
        if value < self.last and self.limit is not None:
            self.last -= self.limit + 1
        self.joules += (value - self.last) * self.unit
        self.last = value
        return self.joules


@final
class _MissingCounterError(Exception):
    """The machine does not tell the energy; its text says why."""


@final
class EnergyMeter:
    """The energy that a device has used since the meter was made.

    ``missing_reason`` says why nothing is measured; None where the machine tells. ``device`` is a name of torch,
    such as "cpu" or "cuda:1"; ``powercap`` is the folder of the counters of processors.
    """

    def __init__(self, device: str = "cpu", *, powercap: Path = _POWERCAP) -> None:
        self.missing_reason: str | None = None
        self._counters: list[_Counter] = []
        try:
            self._counters = _find_counters(device, powercap)
            for counter in self._counters:
                counter.last = counter.read()
        except _MissingCounterError as error:
            self.missing_reason = str(error)

    def read(self) -> float | None:
        """Return the joules since the meter was made; None if the machine does not tell, or no longer does."""
        if self.missing_reason is None:
            try:
                return sum(counter.advance() for counter in self._counters)
            except _MissingCounterError as error:
                self.missing_reason = str(error)
        return None


def _find_counters(device: str, powercap: Path) -> list[_Counter]:
    if device == "cpu":
        return _find_packages(powercap)
    if device.partition(":")[0] == "cuda":
        import torch

        if torch.version.hip is None:  # AMD's GPUs have this name too, and no NVML
            return [_find_gpu(device)]
    raise _MissingCounterError(f"the energy of {device} is not known")


def _find_packages(powercap: Path) -> list[_Counter]:
    """The counters of all packages. Their parts, such as cores, are counted in them."""
    zones = [zone for zone in sorted(powercap.glob("intel-rapl:*")) if _read_text(zone / "name").startswith("package")]
    if not zones and sys.platform == "darwin":
        raise _MissingCounterError("macOS tells only the administrator how much energy is used")
    if not zones:
        raise _MissingCounterError("this system has no energy counters; virtual machines seldom have them")
    return [
        _Counter(_package_reader(zone / "energy_uj"), _MICROJOULE, int(_read_text(zone / "max_energy_range_uj")))
        for zone in zones
    ]


def _package_reader(file: Path) -> Callable[[], int]:
    return lambda: int(_read_text(file))


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except PermissionError:
        raise _MissingCounterError(
            f"only the administrator may read the energy counters; `sudo chmod a+r {file}` permits it"
        ) from None
    except OSError:
        raise _MissingCounterError("the energy counters of this system cannot be read") from None


def _find_gpu(device: str) -> _Counter:
    """The counter of a CUDA device, which NVML finds by its UUID: it numbers devices in another way than torch."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        raise _MissingCounterError(
            "the energy of a GPU is read by a package that is not installed: pip install nvidia-ml-py"
        ) from None
    import torch

    def read() -> int:
        try:
            return int(nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        except nvml.NVMLError:
            raise _MissingCounterError("this GPU does not count its energy") from None

    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except (nvml.NVMLError, AssertionError, RuntimeError):
        raise _MissingCounterError("the driver of this device does not tell its energy") from None
    return _Counter(read, _MILLIJOULE, None)
