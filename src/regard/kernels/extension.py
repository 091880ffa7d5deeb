"""The compiled module ``_native``: loaded, or the reason why it is missing, said once and not in silence.

Its threads are those of the OpenMP runtime that torch has loaded, which it looks for when it is first used.
"""

from __future__ import annotations

import sys
import warnings
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch

_BUILD_HINT = (
    "install a wheel of regard for this Python and system, or build it: `pip install .` in a clone, with a compiler"
)
_INTERFACE = 1
"""Of the module that these files call: that of ``csrc/module.cpp``."""


def _check_interface(found: int) -> None:
    """Raise ImportError where these files would call the module in ways that it does not understand."""
    if found != _INTERFACE:
        raise ImportError(
            f"it was built from other sources than these Python files (its interface is {found}, and {_INTERFACE} is "
            "needed); build it again, by `pip install .` or, in a clone, `make kernels`"
        )


def _load_failure(error: ImportError) -> str:
    """What is wrong with the extension, as far as its file tells."""
    files = sorted(file.name for file in Path(__file__).parent.glob("_native*") if file.suffix in (".so", ".pyd"))
    own = [file for file in files if file.removeprefix("_native") in EXTENSION_SUFFIXES]
    if own:
        return f"its extension {own[0]} cannot be loaded: {error}"
    if files:
        version = ".".join(map(str, sys.version_info[:2]))
        return f"its extension was built for another Python or system than this {version}: {', '.join(files)}"
    return "its extension was not built"


missing_reason: str | None = None
"""Why there is no extension; None if there is."""
try:
    from regard.kernels import _native as native

    _check_interface(getattr(native, "interface", 0))  # there was a time without numbers
except ImportError as error:
    missing_reason = _load_failure(error)
    native = None  # type: ignore[assignment]

__all__ = ["missing_reason", "native", "warn_once"]


def warn_once() -> None:
    """Warn, once in a process, where the kernels are missing or have to do with one thread. Not while torch traces."""
    if not torch.compiler.is_compiling():
        _warn()


@cache
def _warn() -> None:
    if missing_reason is not None:
        message = (
            f"regard's own kernels are missing: {missing_reason}. Torch computes instead, slower. To do: {_BUILD_HINT}"
        )
    elif native.openmp() is None:
        message = (
            "regard's own kernels compute on one thread: torch has loaded no OpenMP runtime to share threads with. "
            "To do: install a build of torch with OpenMP, as those of pytorch.org and PyPI are"
        )
    else:
        return
    warnings.warn(message, RuntimeWarning, stacklevel=3)
