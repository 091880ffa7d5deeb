"""Sizes of the results of operations on texts, before they run: bounds for those that make more than they read."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from regard.generation.template_budget import TemplateBudget, refuse_unless

_MAX_FORM = 4096
"""Characters of a text with conversions, such as %s and {:d}."""
_MAX_SLOW = 2**16
"""Characters that a slow filter reads."""
_PERCENT = re.compile(r"%(?:\(\w*\))?[-+ #0]*(\*|\d*)(?:\.(\*|\d*))?[a-zA-Z]")
_FIELD = re.compile(r"\{[^{}]*\}")
_MAX_DIGITS = 9
_NESTED = re.compile(r"\{[^{}]*:[^{}]*\{")
_DIGITS = re.compile(r"\d+")

_SEARCHES = frozenset({"rfind", "rindex", "rsplit", "rpartition", "strip", "lstrip", "rstrip", "trim"})
"""Methods and filters that may take the product of the lengths of two texts."""
_FAST_ENCODINGS = frozenset({"utf-8", "ascii", "latin-1"})
"""Encodings of long texts; some others, such as punycode, take the square of the length."""
_ATTRIBUTE_FILTERS = frozenset({"groupby", "max", "min", "rejectattr", "selectattr", "sort", "sum", "unique"})
_MAX_PARTS = 32
"""Attributes of attributes in one name."""

MAXIMUM = frozenset({"center", "ljust", "rjust", "zfill", "to_bytes", "truncate", "batch", "slice"})
"""Operations whose result is as long as their text, or as an integer says."""
SLOW = frozenset({"pprint", "striptags", "urlize", "wordwrap", "xmlattr"})
"""Filters that take long, or repeat an argument."""


def check_result(name: str, values: Sequence[Any], budget: TemplateBudget) -> None:
    """Charge the result of a filter or method ``name``; the first of its ``values`` is the text."""
    if name == "replace" and len(values) >= 3:
        budget.charge(
            _size_of_replacement(*(value if isinstance(value, str | bytes) else str(value) for value in values[:3]))
        )
    elif name == "join":
        budget.charge(_size_of_join(values, budget))
    elif name in ("format", "format_map"):
        check_form(str(values[0]), values[1:], budget)
    elif name == "indent":
        width = max((_width(value) for value in values[1:]), default=4)
        budget.charge(len(str(values[0])) + (str(values[0]).count("\n") + 1) * width)
    elif name == "expandtabs":
        tab = b"\t" if isinstance(values[0], bytes) else "\t"
        budget.charge(len(values[0]) + values[0].count(tab) * max(8, *map(_width, values)))
    elif name in _SEARCHES:
        budget.charge(
            len(str(values[0])) * max(1, *(len(value) for value in values[1:] if isinstance(value, str | bytes)), 1)
        )
    elif name in ("encode", "decode"):
        refuse_unless(len(values[0]) <= _MAX_FORM or set(values[1:]) <= _FAST_ENCODINGS)
    elif name == "translate":
        budget.charge(len(values[0]) * max(1, *map(budget.measure, values[1:])))
    elif name == "tojson" and len(values) > 1:
        budget.charge(budget.measure(values[0]) * max(map(_width, values[1:])))
    elif name == "sum":  # of numbers: a sum of lists takes the square of its time
        refuse_unless(not any(isinstance(value, list | tuple) for value in values[1:]))
    elif name in SLOW:
        refuse_unless(sum(map(budget.measure, values)) <= _MAX_SLOW)
        budget.charge(
            budget.measure(values[0]) * max(1, *(len(value) for value in values[1:] if isinstance(value, str)), 1)
        )
    for argument in values[1:] if name in _ATTRIBUTE_FILTERS else values[2:] if name == "join" else ():
        check_attribute(argument)
    if name in MAXIMUM or name in SLOW:
        for argument in values:
            refuse_unless(not isinstance(argument, int) or budget.is_size(argument))


def check_attribute(name: Any) -> None:
    """Refuse the name of an attribute of an attribute .. that takes long to follow for each entry of a list."""
    refuse_unless(not isinstance(name, str) or name.count(".") + name.count(",") <= _MAX_PARTS)


def check_form(form: str, values: Sequence[Any], budget: TemplateBudget) -> None:
    """Charge the text that the conversions in ``form`` make of values."""
    refuse_unless(len(form) <= _MAX_FORM or ("%" not in form and "{" not in form))
    size = sum(map(budget.measure, values))
    widths = [width for match in _PERCENT.finditer(form) for width in match.groups() if width]
    widths += [digits for field in _FIELD.findall(form) for digits in _DIGITS.findall(field.partition(":")[2])]
    if "*" in widths or _NESTED.search(form):  # a value says how wide another one is
        numbers = [str(abs(number)) for value in values for number in _numbers_in(value)]
        widths = [width for width in widths if width != "*"] + numbers
    refuse_unless(all(len(width) <= _MAX_DIGITS for width in widths))
    budget.charge(len(form) + (form.count("%") + form.count("{")) * (max(map(int, widths), default=0) + size))


def _numbers_in(value: Any) -> list[int]:
    parts = value if isinstance(value, tuple | list) else value.values() if isinstance(value, dict) else [value]
    return [part for part in parts if isinstance(part, int)]


def _size_of_replacement(text: Any, old: Any, new: Any) -> int:
    """The size of a text with ``new`` for ``old``. All three are texts or all bytes: a mixture fails anyway."""
    if len({type(text), type(old), type(new)} & {bytes}) and not isinstance(text, bytes):
        return 0
    return len(text) + (text.count(old) if old else len(text) + 1) * len(new)


def _size_of_join(values: Sequence[Any], budget: TemplateBudget) -> int:
    """The size of entries with a text between them, whichever of the values is which."""
    entries = [len(value) for value in values if isinstance(value, list | tuple | dict)]
    texts = [len(value) for value in values if isinstance(value, str | bytes)]
    between = max(entries) * sum(texts) if entries else math.prod(texts) if len(texts) > 1 else 0
    return sum(map(budget.measure, values)) + between


def _width(value: Any) -> int:
    return abs(value) if isinstance(value, int) else len(value) if isinstance(value, str) else 1
