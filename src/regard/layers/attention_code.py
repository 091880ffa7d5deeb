"""Which modules compute attention weights by code of their own: seen in the names that their methods refer to.

Nothing is run. A module counts if its class is named after attention and its code computes weights.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from regard.layers.torch_attention import TorchAttention

_WEIGHTS = {
    "softmax",
    "Softmax",
    "XSoftmax",
    "scaled_dot_product_attention",
    "multi_head_attention_forward",
    "logsumexp",
    "flex_attention",
    "mra2_attention",  # MRA and YOSO have no softmax
    "YosoCumulation",
    "slope_rate",  # the decay of MiniMax's lightning attention
}
_NAMES = ("attention", "attn")


def computes_own_attention(module: nn.Module) -> bool:
    """Whether a module computes attention weights by code of its own, not of regard."""
    kind = type(module)
    if isinstance(module, TorchAttention) or kind.__module__.startswith("regard."):
        return False
    if isinstance(module, nn.MultiheadAttention):
        return True
    return any(name in kind.__name__.lower() for name in _NAMES) and bool(referenced_names(kind) & _WEIGHTS)


def referenced_names(kind: type[Any]) -> set[str]:
    """All names that the methods of a class refer to, without those that it inherits from torch."""
    return {name for method in methods(kind) for name in names_in_code(method.__code__)}


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
