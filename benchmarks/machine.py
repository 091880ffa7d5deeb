"""Describe the machine and the versions that results belong to."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

_PACKAGES = ("regard", "torch", "transformers", "onnxruntime", "onnx", "numpy")
_ROOT = Path(__file__).resolve().parents[1]


def machine() -> dict[str, Any]:
    """Describe the processor, its caches, memory, and the number of threads in use; and the GPU if there is one."""
    gpu = {"GPU": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return gpu | {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instructions": _instructions(),
        "last cache": _last_cache(),
        "memory GB": _memory(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    """Versions of regard, other libraries and Python; regard's commit in a checkout; its kernels' instruction set."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found | {"commit": _commit(), "kernels": _kernels()}


def slug() -> str:
    """Return a file name for this machine."""
    described = machine()
    name = f"{described['processor']} {described['cores']} cores {described['instructions']}"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(re.findall(r"^(model name|cpu family|model)\s*: (.*)$", text, re.MULTILINE))
    name = fields.get("model name", platform.machine())
    return f"{name} family {fields['cpu family']} model {fields['model']}" if "cpu family" in fields else name


def _instructions() -> str:
    """Return the best instruction set that torch detects."""
    return str(torch.backends.cpu.get_cpu_capability()).lower().replace("_", "-")


def _last_cache() -> str:
    sizes = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    return sizes[-1].read_text(encoding="utf-8").strip() if sizes else "unknown"


def _memory() -> float:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (ValueError, OSError, AttributeError):
        return 0.0


def _kernels() -> str:
    try:
        from regard.kernels import _native
    except ImportError:
        return "not built"
    return _native.isa()


def _commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(_ROOT), *words], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "--short=10", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", "src")
    return f"{commit} with changes" if commit and changed else commit
