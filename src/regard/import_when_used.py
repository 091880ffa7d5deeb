"""Names of a package that are imported when they are first used (PEP 562), so that its light modules need no torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module


def import_when_used(package: str, **modules: tuple[str, ...]) -> Callable[[str], object]:
    """Make the ``__getattr__`` of a package from the public names of each of its ``modules``.

    A name that no module has raises AttributeError.
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)
        value = getattr(import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
