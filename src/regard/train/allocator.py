"""Memory that stays with the process.

A training step takes and gives back the same large pieces of memory each time. glibc gets those from the system and
returns them, and every page is cleared and mapped anew: a third of a step of a small model. Asked to keep them, it
hands out what it has.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
"""The numbers of mallopt's parameters, as malloc.h has them."""
_NEVER, _MORE = 2**31 - 1, 2**26


def keep_memory() -> bool:
    """Ask the allocator to keep what is freed. False where it is not glibc's, and nothing was changed."""
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER), (_TOP_PAD, _MORE))
    return all(library.mallopt(parameter, value) for parameter, value in settings)
