"""Jinja's immutable sandbox with bounds: the template of a stranger's model must neither fill the memory nor run on.

The sandbox keeps templates from Python's internals and from files, but not from ``'x' * 10**9`` or from loops in loops.
Here a product of a text or a list, a power, and a number that is passed to a filter or a method have limits, and so
have the steps of all ``range`` together.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, final

from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range

_MAX_SIZE = 2**22
"""Characters or entries that one operation may make, and numbers that it may be given; no prompt is that long."""
_MAX_BITS = 4096
"""Bits of a power."""
_MAX_STEPS = 1_000_000
"""Steps of all loops over ``range`` in a template."""


@final
class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox for one rendering. Operations beyond the limits raise SecurityError, a TemplateError."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._steps = 0
        self.globals["range"] = self._count_range
        for name, function in self.filters.items():
            self.filters[name] = _limit_numbers(function)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute a product, a power, or a remainder, which is formatting for a text."""
        if operator == "*":
            for one, times in ((left, right), (right, left)):
                if isinstance(one, str | bytes | list | tuple) and isinstance(times, int):
                    _check(len(one) * times <= _MAX_SIZE)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check(left.bit_length() * right <= _MAX_BITS)
        elif operator == "%" and isinstance(left, str):
            _check(re.search(r"\d{6}|\*", left) is None)
        return super().call_binop(context, operator, left, right)

    def call(self, __context: Context, __obj: Any, *args: Any, **options: Any) -> Any:
        """Call a function or a method of a template."""
        _check_numbers(args, options)
        return super().call(__context, __obj, *args, **options)

    def _count_range(self, *args: int) -> range:
        steps = safe_range(*args)
        self._steps += len(steps)
        _check(self._steps <= _MAX_STEPS)
        return steps


def _limit_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def bounded(*args: Any, **options: Any) -> Any:
        _check_numbers(args, options)
        return function(*args, **options)

    return bounded


def _check_numbers(args: tuple[Any, ...], options: dict[str, Any]) -> None:
    _check(all(abs(one) <= _MAX_SIZE for one in (*args, *options.values()) if isinstance(one, int)))


def _check(fits: bool) -> None:
    if not fits:
        raise SecurityError("the template makes a text or a number that is too large, or has too many steps")
