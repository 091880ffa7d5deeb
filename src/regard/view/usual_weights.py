"""The usual weights of a head: the mean weight at each distance from all other words' tokens.

    usual_ij = sum of w_kl / number of them,    over l - k = j - i, where k is a token of another word than i's

Only tokens of words count, and not the key that is kept apart. Where no other word has a token at that distance, it is
the uniform share 1 / keys. The sum over others is the sum along a diagonal less the sum over the rows of the own word;
of a word of one piece, that is the weight itself.

Sums along the diagonals of a matrix of weights: of the weights at each distance from query to key.

sums[d + queries - 1] = sum of w_ij over all pairs with j - i = d,    d = 1 - queries .. keys - 1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

import numpy as np
from jaxtyping import Float, Float32, Float64

from regard.view.words_from_tokens import Word


@final
class UsualWeights:
    """The usual weights of heads over the same tokens: ``of`` computes the weights of one head."""

    def __init__(
        self, queries: int, keys: int, query_words: Sequence[Word], key_words: Sequence[Word], sink: int | None
    ) -> None:
        self._in_word = np.zeros(queries, dtype=bool)
        self._in_word[[piece for word in query_words for piece in word.pieces]] = True
        self._is_key = np.zeros(keys, dtype=bool)
        self._is_key[[piece for word in key_words for piece in word.pieces]] = True
        if sink is not None:
            self._is_key[sink] = False
        self._words = [list(word.pieces) for word in query_words if len(word.pieces) > 1]
        self._count: Float32[np.ndarray, "queries keys"] = self._sum_of_others(np.ones((queries, keys))).astype("f4")

    def of(self, weights: Float64[np.ndarray, "queries keys"]) -> Float64[np.ndarray, "queries keys"]:
        """Compute the usual weight of each pair, for queries that belong to a word; the other rows mean nothing."""
        usual = self._sum_of_others(weights)
        is_counted = self._count > 0.5
        np.divide(usual, self._count, out=usual, where=is_counted)
        np.copyto(usual, 1 / weights.shape[1], where=~is_counted)
        return np.maximum(usual, 0.0, out=usual)

    def _sum_of_others(self, amounts: Float64[np.ndarray, "queries keys"]) -> Float64[np.ndarray, "queries keys"]:
        counts = self._in_word[:, None] & self._is_key
        others = amounts * counts
        sums = by_distance(sum_diagonals(others), len(others))
        np.subtract(sums, others, out=others)
        for pieces in self._words:
            own = _diagonals_of_rows(amounts[pieces] * self._is_key, pieces)
            others[pieces] += amounts[pieces] * self._is_key - own
        return others


def _diagonals_of_rows(
    rows: Float64[np.ndarray, "pieces keys"], pieces: Sequence[int]
) -> Float64[np.ndarray, "pieces keys"]:
    """For each of the rows at ``pieces``, the sum of all of them along the diagonals through its pairs."""
    first, count, keys = min(pieces), max(pieces) - min(pieces) + 1, rows.shape[1]
    square = np.zeros((count, keys))
    square[np.array(pieces) - first] = rows
    return by_distance(sum_diagonals(square), count)[np.array(pieces) - first]


_BLOCK = 2**20
"""Numbers of a block of rows, about: views of long texts copy a block at a time, and not a matrix."""
_BLOCK_ROWS = 2**10
"""Rows of a block, at most: of more rows than keys, most numbers of a shifted block would be 0."""


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Divide rows of ``columns`` numbers into blocks of at most 1,024 rows and a million numbers, or of one row."""
    size = max(1, min(_BLOCK_ROWS, _BLOCK // max(1, columns)))
    return (slice(first, min(rows, first + size)) for first in range(0, rows, size))


def sum_diagonals(weights: Float[np.ndarray, "queries keys"]) -> Float64[np.ndarray, " distances"]:
    """Sum the weights at each distance, from the last query and the first key to the first query and the last key."""
    queries, keys = weights.shape
    sums = np.zeros(max(0, queries + keys - 1))
    for block in row_blocks(queries, keys):
        rows = block.stop - block.start
        # Rows of keys + rows numbers, read as rows of one number less, are shifted by one against each other.
        shifted = np.zeros((rows, keys + rows), dtype=weights.dtype)
        shifted[:, :keys] = weights[block][::-1]
        diagonals = shifted.reshape(-1)[: rows * (keys + rows - 1)].reshape(rows, -1)
        first = queries - block.stop
        sums[first : first + keys + rows - 1] += diagonals.sum(axis=0)
    return sums


def by_distance(numbers: Float64[np.ndarray, " distances"], queries: int) -> Float64[np.ndarray, "queries keys"]:
    """View one number for each distance, in the order of ``sum_diagonals``, as a matrix of pairs. It is not a copy."""
    windows = np.lib.stride_tricks.sliding_window_view(numbers, len(numbers) - queries + 1)
    return windows[::-1]
