"""Names of modules inside a model, as ``named_modules`` gives them; "" is the model itself."""

from __future__ import annotations


def is_inside(name: str, owner: str) -> bool:
    """Whether a module is ``owner`` or a part of it."""
    return not owner or name == owner or name.startswith(owner + ".")


def join_names(prefix: str, name: str) -> str:
    """Name of a part of the module ``prefix``."""
    return ".".join(filter(None, (prefix, name)))
