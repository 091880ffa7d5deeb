"""regard: attention mechanisms for PyTorch, exact, fast, and open to inspection.

Names are imported when they are first used, so that the command answers ``--help`` without importing torch. No module
here has the name of a function (``regard.attention`` is in ``exact_attention``): importing it would replace the
function.

The compiled kernels alone are loaded here. They need neither torch nor NumPy, and from then on they know when the
process forks: a child that loaded them itself would wait for the threads of its parent.
"""

from contextlib import suppress as _suppress
from importlib import import_module as _import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard import masks, positions
    from regard.attention_statistics import observe
    from regard.auditing.assertion import assert_no_leaks
    from regard.auditing.run_audit import audit
    from regard.contract import Observation
    from regard.conversion import ConversionReport, convert
    from regard.exact_attention import attention, why
    from regard.kernels.select import Choice
    from regard.layers.multi_head import MultiHeadAttention
    from regard.mechanism_catalogue import CatalogueRow, catalogue, mechanism, register_mechanism
    from regard.models.load import load
    from regard.recording.sources import record
    from regard.recording.watcher import watch
    from regard.showing import show

    __version__: str

__all__ = [
    "CatalogueRow",
    "Choice",
    "ConversionReport",
    "MultiHeadAttention",
    "Observation",
    "assert_no_leaks",
    "attention",
    "audit",
    "catalogue",
    "convert",
    "load",
    "masks",
    "mechanism",
    "observe",
    "positions",
    "record",
    "register_mechanism",
    "show",
    "watch",
    "why",
]

_MODULES = {
    "CatalogueRow": "regard.mechanism_catalogue",
    "Choice": "regard.kernels.select",
    "ConversionReport": "regard.conversion",
    "MultiHeadAttention": "regard.layers.multi_head",
    "Observation": "regard.contract",
    "assert_no_leaks": "regard.auditing.assertion",
    "attention": "regard.exact_attention",
    "audit": "regard.auditing.run_audit",
    "catalogue": "regard.mechanism_catalogue",
    "convert": "regard.conversion",
    "load": "regard.models.load",
    "mechanism": "regard.mechanism_catalogue",
    "observe": "regard.attention_statistics",
    "record": "regard.recording.sources",
    "register_mechanism": "regard.mechanism_catalogue",
    "show": "regard.showing",
    "watch": "regard.recording.watcher",
    "why": "regard.exact_attention",
}
"""The module of each public name that is not a module itself."""

with _suppress(ImportError):  # ``kernels.extension`` tells why they are missing, where they are used
    _import_module("regard.kernels._native")


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> object:
        """Import a public name or a module when it is first used (PEP 562)."""
        if name == "__version__":
            from importlib.metadata import version

            value = version("regard")
        elif name in _MODULES:
            value = getattr(_import_module(_MODULES[name]), name)
        else:
            value = _import_submodule(name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


def _import_submodule(name: str) -> object:
    """Import ``regard.name``. Raises AttributeError if there is no such module."""
    if not name.startswith("_"):
        try:
            return _import_module(f"regard.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"regard.{name}":
                raise
    raise AttributeError(f"module 'regard' has no attribute {name!r}", name=name)
