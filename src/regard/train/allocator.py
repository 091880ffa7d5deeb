"""Memory that stays with the process, and what does not have to.

A training step takes and gives back the same large pieces of memory each time. glibc gets those from the system and
returns them, and every page is cleared and mapped anew: a third of a step of a small model. Asked to keep them, it
hands out what it has.

oneDNN compiles a kernel for each shape of a product, and keeps 1,024 of them with what each works with. Batches of
sentences have new shapes for ever. As many as a step needs are enough: steps take as long, and after 150 of them a
model of some million weights holds 0.5 to 0.7 GB less.
"""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
"""The numbers of mallopt's parameters, as malloc.h has them."""
_NEVER_TRIM, _TOP_PAD_BYTES = 2**31 - 1, 2**26
_KERNEL_CACHE_CAPACITY = 64


def keep_freed_memory() -> bool:
    """Ask the allocator to keep what is freed. False where it is not glibc's, and nothing was changed."""
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER_TRIM), (_TOP_PAD, _TOP_PAD_BYTES))
    return all(library.mallopt(parameter, value) for parameter, value in settings)


def limit_kernel_cache() -> None:
    """Ask oneDNN to keep few kernels, unless the user said how many. To be called before it is asked for the first."""
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(_KERNEL_CACHE_CAPACITY))
