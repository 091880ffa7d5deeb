"""The usual weights of a head: the mean weight at each distance from all other words' tokens.

    usual_ij = sum of w_kl / number of them,    over l - k = j - i, where k is a token of another word than i's

Only tokens of words count, and not the key that is kept apart. Where no other word has a token at that distance, it is
the uniform share 1 / keys. The sum over others is the sum along a diagonal less the sum over the rows of the own word;
of a word of one piece, that is the weight itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
from jaxtyping import Float32, Float64

from regard.view.diagonals import by_distance, sum_diagonals
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
