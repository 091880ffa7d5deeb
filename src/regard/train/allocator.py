"""Settings of the memory allocator and of oneDNN's kernel cache for training on a CPU.

Each training step allocates and frees the same large blocks. By default glibc takes them from the system and returns
them, so that every page is cleared and mapped again: a third of a step of a small model. With the settings here, glibc
keeps freed blocks and reuses them.

oneDNN compiles a kernel for each shape of a matrix product, and caches 1,024 of them with their buffers. Batches of
sentences never stop having new shapes. A cache for the kernels of one step is enough: steps take as long, and after 150
of them a model of some million weights holds 0.5 to 0.7 GB less.
"""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
"""mallopt parameter numbers, from malloc.h."""
_NEVER_TRIM, _TOP_PAD_BYTES = 2**31 - 1, 2**26
_KERNEL_CACHE_CAPACITY = 64


def keep_freed_memory() -> bool:
    """Tell glibc to keep freed memory. Returns False, and changes nothing, if the allocator is not glibc's."""
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER_TRIM), (_TOP_PAD, _TOP_PAD_BYTES))
    return all(library.mallopt(parameter, value) for parameter, value in settings)


def limit_kernel_cache() -> None:
    """Limit oneDNN's kernel cache, unless the user has set its capacity. Call it before oneDNN's first kernel."""
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(_KERNEL_CACHE_CAPACITY))
