"""The budget of a chat template: steps, and the characters that its operations read and make.

    room        2**20 + characters of the messages
    a value     at most 2 room        a text, a list, what a value is as a text; the prompt too
    all work    at most 64 room       summed over operations; an entry of a list counts as 8
    steps       at most 1,000,000     passes of loops, calls, filters, comparisons, outputs

All work of a template is charged before it is done, so its time and memory have a bound that depends on no clock: some
seconds, and some hundred megabytes.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any, final

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

_BASE_ROOM = 2**20
_MAX_STEPS = 1_000_000
_MAX_BITS = 4096
"""Bits of an integer."""
_ENTRY = 8
"""An entry of a list, in characters: the bytes of a pointer, and about the time."""
_LISTS = (list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)


@final
class TemplateBudget:
    """The budget of one rendering, of ``messages``. Each method raises SecurityError beyond it."""

    def __init__(self, messages: object = ()) -> None:
        self._largest = self._work = 2**62  # of the messages, which are the caller's
        self._steps = 2**62
        room = _BASE_ROOM + self.measure(messages)
        self._largest, self._work, self._steps = 2 * room, 64 * room, _MAX_STEPS

    def step(self) -> None:
        """Count a step: a pass of a loop, a call or an operation. Raises SecurityError beyond the budget."""
        self._steps -= 1
        refuse_unless(self._steps >= 0)

    def charge(self, size: int) -> None:
        """Count an operation on values, or with a result, of so many characters."""
        self.step()
        refuse_unless(size <= self._largest)
        self._work -= size
        refuse_unless(self._work >= 0)

    def is_size(self, number: int) -> bool:
        """Whether an integer may be the size of a value."""
        return abs(number) <= self._largest

    def measure(self, value: object) -> int:
        """Charge and return the size of a value with all in it, as often as it occurs there: the size of its text."""
        size, left = 0, [value]
        while left:
            part = left.pop()
            if isinstance(part, Mapping):
                left += part.keys()
                left += part.values()
            elif isinstance(part, _LISTS):
                left += part
            elif isinstance(part, Namespace):
                left += [getattr(part, "_Namespace__attrs")]  # noqa: B009 - a name that Python would mangle here
            size += shallow_size(part)
            refuse_unless(size <= self._largest)
        self.charge(size)
        return size

    def count_items(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items, each of which is a step."""
        for item in items:
            self.step()
            yield item


def shallow_size(value: object) -> int:
    """The size of a value without what is in its entries, in characters."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, int):
        return value.bit_length() // 3 + 1
    if isinstance(value, (*_LISTS, Mapping, range)):
        return 1 + _ENTRY * len(value)
    return 1


def check_bits(bits: int) -> None:
    """Refuse an integer of so many bits."""
    refuse_unless(bits <= _MAX_BITS)


def refuse_unless(fits: bool) -> None:
    """Raise SecurityError unless something ``fits``."""
    if not fits:
        raise SecurityError("the template makes a text or a number that is too large, or has too many steps")
