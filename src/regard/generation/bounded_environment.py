"""Jinja's immutable sandbox that refuses the plain ways to fill the memory or to run on.

The sandbox keeps templates from Python's internals and from files, but not from ``'x' * 10**9`` or from loops in loops.
Here a product of a text or a list, a power, a width of formatting, the sizes that filters and methods of texts take,
and the steps of all ``range`` together have limits. That is no protection from a template that is written to get around
them: only a process of its own would be.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, final

from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range

_MAX_SIZE = 2**20
"""Characters or entries that one operation may make."""
_MAX_BITS = 4096
"""Bits of a power."""
_MAX_STEPS = 1_000_000
"""Steps of all loops over ``range`` in a template."""
_WIDTH = re.compile(r"%(?:\(\w*\))?[-+ #0]*(\d*)(?:\.(\d*))?[a-zA-Z]|\{[^{}]*:[^{}]*?(\d+)[^{}]*\}")
_STAR = re.compile(r"%[-+ #0]*\d*\.?\*")
_SIZED = frozenset({"batch", "center", "indent", "lipsum", "slice", "truncate", "wordwrap"})
"""Filters whose integers are sizes."""
_SIZED_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
"""Methods of texts whose integers are sizes."""


@final
class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox for one rendering. Operations beyond the limits raise SecurityError, a TemplateError."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._range_steps = 0
        self.globals["range"] = self._count_range
        for name in _SIZED & self.filters.keys():
            self.filters[name] = _check_before(self.filters[name], _check_sizes)
        self.filters["format"] = _check_before(self.filters["format"], _check_widths)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute a product, a power, or a remainder, which is formatting for a text."""
        if operator == "*":
            for one, times in ((left, right), (right, left)):
                if isinstance(one, str | bytes | list | tuple) and isinstance(times, int):
                    _refuse_unless(len(one) * times <= _MAX_SIZE)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _refuse_unless(left.bit_length() * right <= _MAX_BITS)
        elif operator == "%" and isinstance(left, str):
            _check_widths(left)
            if _STAR.search(left):
                _check_sizes(*(right if isinstance(right, tuple) else (right,)))
        return super().call_binop(context, operator, left, right)

    def call(self, __context: Context, __obj: Any, *args: Any, **options: Any) -> Any:
        """Call a function or a method of a template."""
        text = getattr(__obj, "__self__", None)
        if isinstance(text, str) and __obj.__name__ in _SIZED_METHODS:
            _check_sizes(*args)
        return super().call(__context, __obj, *args, **options)

    def _count_range(self, *args: int) -> range:
        steps = safe_range(*args)
        self._range_steps += len(steps)
        _refuse_unless(self._range_steps <= _MAX_STEPS)
        return steps


def _check_before(function: Callable[..., Any], check: Callable[..., None]) -> Callable[..., Any]:
    """The function, after a check of its arguments."""

    @functools.wraps(function)
    def check_and_call(*args: Any, **options: Any) -> Any:
        check(*args, **options)
        return function(*args, **options)

    return check_and_call


def _check_sizes(*args: Any, **options: Any) -> None:
    """Refuse integers that are too large for a size."""
    _refuse_unless(all(abs(one) <= _MAX_SIZE for one in (*args, *options.values()) if isinstance(one, int)))


def _check_widths(text: Any, *_args: Any, **_options: Any) -> None:
    """Refuse a text with conversions such as %9999999d and {:9999999}."""
    widths = (width for found in _WIDTH.finditer(str(text)) for width in found.groups() if width)
    _refuse_unless(all(len(width) < len(str(_MAX_SIZE)) for width in widths))


def _refuse_unless(fits: bool) -> None:
    if not fits:
        raise SecurityError("the template makes a text or a number that is too large, or has too many steps")
