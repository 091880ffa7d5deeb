"""The methods of a layer, and the names in their code. Nothing is run."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import nn


def methods(kind: type[Any]) -> Iterator[FunctionType]:
    """Yield the methods of a class, without decorators, and without those that it inherits from torch or the base of
    all models.
    """
    for base in kind.__mro__:
        if base in (nn.Module, object) or base.__module__.startswith("transformers.modeling_utils"):
            continue
        for part in vars(base).values():
            method = inspect.unwrap(part) if callable(part) else None
            if isinstance(method, FunctionType):
                yield method


def names_in_code(code: CodeType) -> set[str]:
    """All names that a code object and those nested in it refer to."""
    names = {*code.co_names, *code.co_varnames}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= names_in_code(constant)
    return names
