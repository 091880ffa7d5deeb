"""Which query may attend to which key: every mask as a double loop over query i and key j. True: may attend.

The last query is aligned with the last key, so query i is at position i + keys - queries. If there are more queries
than keys, the first queries have negative positions, where there is no token.

Shapes: a mask that is the same for every batch item is (queries, keys), any other is (batch, 1, queries, keys).
Both broadcast to (batch, heads, queries, keys), and NumPy's `& | ~` combine them.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np


def causal(queries: int, keys: int) -> np.ndarray:
    """A query sees its own position and all positions before it."""
    return _each_pair(queries, keys, lambda position, key: key <= position)


def window(left: int | None, right: int | None, queries: int, keys: int) -> np.ndarray:
    """A query sees `left` positions before its own and `right` after it; None: unbounded."""

    def near(position: int, key: int) -> bool:
        return (left is None or -left <= key - position) and (right is None or key - position <= right)

    return _each_pair(queries, keys, near)


def padding(lengths: Sequence[int], queries: int, keys: int) -> np.ndarray:
    """Keys from index `lengths[batch]` on are padding, and no query sees them."""

    def real(length: int) -> np.ndarray:
        return _each_pair(queries, keys, lambda position, key: key < length)

    return _each_batch_item(lengths, real)


def documents(ids: Sequence[Sequence[int]], queries: int, keys: int) -> np.ndarray:
    """A query sees the keys of its own document; ids is (batch, keys)."""

    def same(item: Sequence[int]) -> np.ndarray:
        return _each_pair(queries, keys, lambda position, key: position >= 0 and item[position] == item[key])

    return _each_batch_item(ids, same)


def global_tokens(positions: Collection[int], queries: int, keys: int) -> np.ndarray:
    """A global token sees all tokens, and all tokens see it (Beltagy 2020, section 3.1)."""
    return _each_pair(queries, keys, lambda position, key: position in positions or key in positions)


def keep(array: np.ndarray, queries: int, keys: int) -> np.ndarray:
    """The array is the mask, True: may attend; it broadcasts to (..., queries, keys)."""
    array = np.asarray(array, dtype=bool)
    result = np.zeros((*array.shape[:-2], queries, keys), dtype=bool)
    for i in range(queries):
        for j in range(keys):
            result[..., i, j] = array[..., min(i, array.shape[-2] - 1), min(j, array.shape[-1] - 1)]
    return result


def blocked(array: np.ndarray, queries: int, keys: int) -> np.ndarray:
    """The array is True where a query may not attend: the inverse of `keep`."""
    return ~keep(array, queries, keys)


def _each_pair(queries: int, keys: int, may_attend: Callable[[int, int], bool]) -> np.ndarray:
    """(queries, keys): evaluate the rule at the positions of each query and key."""
    result = np.zeros((queries, keys), dtype=bool)
    for i in range(queries):
        for j in range(keys):
            result[i, j] = may_attend(i + keys - queries, j)
    return result


def _each_batch_item(items: Sequence[Any], mask_of: Callable[..., np.ndarray]) -> np.ndarray:
    """(batch, 1, queries, keys): one mask for each batch item, the same for all its heads."""
    return np.stack([mask_of(item) for item in items])[:, None]
