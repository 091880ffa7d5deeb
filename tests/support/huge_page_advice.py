"""Memory without advice, and whether the system has been asked to give memory huge pages."""

import mmap
import sys
from pathlib import Path

import pytest
import torch

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux") or not SETTING.exists(), reason="no huge pages here")
MEBIBYTE = 2**20


def new_memory(size, dtype):
    """A tensor of so many bytes in a new mapping: an allocator may return memory that had advice before."""
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(mapping, dtype=dtype)


def is_advised(address):
    """Whether the mapping in which an address is has the flag of huge pages, from /proc/self/smaps."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            start, stop = (int(part, 16) for part in first.split("-"))
            inside = start <= address < stop
        elif inside and first == "VmFlags:":
            return "hg" in line.split()[1:]
    raise AssertionError("no such mapping")
