"""Memory that ran out, on the CPU or on another device: the error, with the options of the command that save memory."""

from __future__ import annotations

from regard.cli.argument_options import spelled_option
from regard.errors import RefusedError, first_line

_SMALLER = ("batch_tokens", "batch", "length", "max_tokens", "cache_memory")
"""Arguments of which a smaller value takes less memory."""
_ALLOCATORS = ("DefaultCPUAllocator", "MPS backend out of memory")
"""Words of torch's errors that have no class of their own."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed. torch has an error class for most devices, but only a message for CPUs and Apple's
    GPUs.
    """
    names = {base.__name__ for base in type(error).__mro__}
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or any(words in str(error) for words in _ALLOCATORS)


def out_of_memory_error(error: Exception) -> RefusedError:
    """The error to show, with what to do about it in the running command."""
    got = first_line(error, 200) or "the allocation failed"
    if _is_of_device(error):
        return RefusedError(
            "there is not enough memory on the device",
            expected='memory for one batch there; `device="cpu"` computes in the memory of the machine',
            got=got,
            do=_what_to_do(),
        )
    return RefusedError("there is not enough memory", expected="memory for one batch", got=got, do=_what_to_do())


def _what_to_do() -> str:
    smaller = ", ".join(option for name in _SMALLER if (option := spelled_option(name)))
    if not smaller:
        return "use less text or a smaller model"
    if spelled_option("accumulate"):
        return f"lower {smaller} (with a larger `accumulate=...`), or use less text or a smaller model"
    return f"lower {smaller}, or use less text or a smaller model"


def _is_of_device(error: Exception) -> bool:
    """Whether the memory is that of a GPU or another accelerator."""
    return type(error).__name__ == "OutOfMemoryError" or _ALLOCATORS[1] in str(error)
