"""Sums along the diagonals of a matrix of weights: of the weights at each distance from query to key.

sums[d + queries - 1] = sum of w_ij over all pairs with j - i = d,    d = 1 - queries .. keys - 1
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float64

_BLOCK = 2**20
"""Numbers of a block of rows, about: views of long texts copy a block at a time, and not a matrix."""
_BLOCK_ROWS = 2**10
"""Rows of a block, at most: of more rows than keys, most numbers of a shifted block would be 0."""


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Divide rows of ``columns`` numbers into blocks of at most 1,024 rows and a million numbers, or of one row."""
    size = max(1, min(_BLOCK_ROWS, _BLOCK // max(1, columns)))
    return (slice(first, min(rows, first + size)) for first in range(0, rows, size))


def sum_diagonals(weights: Float64[np.ndarray, "queries keys"]) -> Float64[np.ndarray, " distances"]:
    """Sum the weights at each distance, from the last query and the first key to the first query and the last key."""
    queries, keys = weights.shape
    sums = np.zeros(max(0, queries + keys - 1))
    for block in row_blocks(queries, keys):
        rows = block.stop - block.start
        # Rows of keys + rows numbers, read as rows of one number less, are shifted by one against each other.
        shifted = np.zeros((rows, keys + rows))
        shifted[:, :keys] = weights[block][::-1]
        diagonals = shifted.reshape(-1)[: rows * (keys + rows - 1)].reshape(rows, -1)
        first = queries - block.stop
        sums[first : first + keys + rows - 1] += diagonals.sum(axis=0)
    return sums


def by_distance(numbers: Float64[np.ndarray, " distances"], queries: int) -> Float64[np.ndarray, "queries keys"]:
    """View one number for each distance, in the order of ``sum_diagonals``, as a matrix of pairs. It is not a copy."""
    windows = np.lib.stride_tricks.sliding_window_view(numbers, len(numbers) - queries + 1)
    return windows[::-1]
