"""The memory that can be allocated now."""

from __future__ import annotations

import os
from pathlib import Path

_PART = 0.8
"""The part of the available memory that may be used, so that other programs keep some."""


def available_memory() -> int | None:
    """Return how many bytes may be used: a part of the available memory; None if the system does not say.

    A limit of the process's control group counts as well, since a container sees the memory of its whole machine.
    """
    file = Path("/proc/meminfo")
    if not file.exists():
        return None
    (line,) = (line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("MemAvailable"))
    limits = [int(line.split()[1]) * 1024, *_control_group_room()]
    return int(min(limits) * _PART)


def _control_group_room() -> list[int]:
    """Return the bytes left below the memory limit of the control group, if there is one."""
    limit, used = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))
    if not (limit.exists() and used.exists() and os.access(limit, os.R_OK)):
        return []
    text = limit.read_text(encoding="ascii").strip()
    return [max(0, int(text) - int(used.read_text(encoding="ascii")))] if text.isdecimal() else []
