"""Why a call failed, in one line."""

from __future__ import annotations

from regard.errors import RegardError


def describe_failure(error: BaseException) -> str:
    """Describe an error of a call; torch raises RuntimeError if memory runs out."""
    if isinstance(error, RegardError):
        return f"{error.what} (got {error.got})"
    text = str(error)
    if isinstance(error, MemoryError) or "alloc" in text or "out of memory" in text.lower():
        return "not enough memory"
    return f"{type(error).__name__}: {(text.splitlines() or [''])[0][:200]}"
