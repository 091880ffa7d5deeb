"""The repr of values that hold arrays or long lists: their fields on one line, arrays by dtype and shape.

A dataclass writes every number and every token, which may be megabytes; a traceback, a debugger and a notebook show it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from regard.errors import short_repr


def repr_of_fields(value: Any) -> str:
    """Format a dataclass as its class and its fields, each shortened; set as ``__repr__`` in the class."""
    shown = ", ".join(f"{one.name}={short_repr(getattr(value, one.name))}" for one in fields(value) if one.repr)
    return f"{type(value).__name__}({shown})"
