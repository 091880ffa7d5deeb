"""Load the compiled module ``_native``; if that fails, keep the reason and warn about it once."""

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
_INTERFACE = 23
"""Version of the interface of ``csrc/bindings/module.cpp`` that these files call."""


def _check_interface(version: int) -> None:
    """Raise ImportError if the module has another interface than these files call."""
    if version != _INTERFACE:
        raise ImportError(
            f"it was built from other sources than these Python files (its interface is {version}, and {_INTERFACE} is "
            "needed); build it again with `pip install .` or, in a clone, `make kernels`"
        )


def _load_failure(error: ImportError) -> str:
    """Explain why the extension cannot be loaded, from the error and the files that exist."""
    files = sorted(file.name for file in Path(__file__).parent.glob("_native*") if file.suffix in (".so", ".pyd"))
    own = [file for file in files if file.removeprefix("_native") in EXTENSION_SUFFIXES]
    if own:
        return f"its extension {own[0]} cannot be loaded: {error}"
    if files:
        version = ".".join(map(str, sys.version_info[:2]))
        return f"its extension was built for another Python or system than this {version}: {', '.join(files)}"
    return "its extension was not built"


missing_reason: str | None = None
"""Why the extension cannot be used; None if it can."""
try:
    from regard.kernels import _native as native

    _check_interface(getattr(native, "interface", 0))  # early builds had no version
except ImportError as error:
    missing_reason = _load_failure(error)
    native = None  # type: ignore[assignment]

__all__ = ["missing_reason", "native", "warn_once"]


def warn_once() -> None:
    """Warn once per process if the kernels are missing. Never under torch.compile."""
    if not torch.compiler.is_compiling():
        _warn()


@cache
def _warn() -> None:
    if missing_reason is None:
        return
    warnings.warn(
        f"regard's own kernels are missing: {missing_reason}. Torch computes instead, slower. To do: {_BUILD_HINT}",
        RuntimeWarning,
        stacklevel=3,
    )
