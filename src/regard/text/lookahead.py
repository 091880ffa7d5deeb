"""Look at the next items of an iterator without taking them from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar, final

Item = TypeVar("Item")

_MAX_ITEMS = 100
_MAX_BYTES = 2**20


@final
class Lookahead(Generic[Item]):
    """Iterator over ``items`` that can be read ahead by a bounded number of them, and of their bytes.

    An error while reading ahead is raised where the item that caused it is read.
    """

    def __init__(self, items: Iterable[Item], size: Callable[[Item], int]) -> None:
        self._items, self._size = iter(items), size
        self._waiting: deque[Item] = deque()
        self._error: Exception | None = None

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if self._waiting:
            return self._waiting.popleft()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return next(self._items)

    def peek(self) -> list[Item]:
        """The items that come next: at most 100, and fewer if they are long."""
        size = sum(map(self._size, self._waiting))
        while len(self._waiting) < _MAX_ITEMS and size < _MAX_BYTES and self._error is None:
            try:
                item = next(self._items)
            except StopIteration:
                break
            except Exception as error:
                self._error = error
                break
            self._waiting.append(item)
            size += self._size(item)
        return list(self._waiting)
