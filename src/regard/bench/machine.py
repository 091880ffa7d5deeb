"""The machine and the software that a benchmark ran on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

import torch

from regard.bench.settings import BenchSettings
from regard.kernels import extension


def describe_machine(settings: BenchSettings) -> dict[str, str | int]:
    """Return the processor or GPU, its cores, the threads in use, and the versions of the software."""
    on_gpu = settings.device.startswith("cuda")
    return {
        "processor": torch.cuda.get_device_name(settings.device) if on_gpu else _processor_name(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "instructions": extension.native.isa() if extension.missing_reason is None else "none",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "regard": version("regard"),
    }


def _processor_name() -> str:
    """Read the name of the processor; where the system does not say, its architecture."""
    file = Path("/proc/cpuinfo")
    if file.exists():
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
