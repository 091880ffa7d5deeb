"""Why a call failed, in one line."""

from __future__ import annotations

from regard.errors import RegardError, class_and_line


def describe_failure(error: BaseException) -> str:
    """Describe an error of a call; torch raises RuntimeError if memory runs out."""
    if isinstance(error, RegardError):
        return f"{error.what} (got {error.got})"
    text = str(error)
    if isinstance(error, MemoryError) or "alloc" in text or "out of memory" in text.lower():
        return "not enough memory"
    return class_and_line(error, 200)
