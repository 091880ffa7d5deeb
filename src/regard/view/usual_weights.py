"""The usual weights of a head: the mean weight at each distance from all other words' tokens.

    usual_ij = sum of w_kl / number of them,    over l - k = j - i, where k is a token of another word than i's

Only tokens of words count, and not the key that is kept apart. Where no other word has a token at that distance, it is
the uniform share 1 / keys. The sum over others is the sum along a diagonal less the terms of the own word: with pieces
at i + s, those are w_(i + s)(j + s).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

import numpy as np
from jaxtyping import Float32, Float64

from regard.view.diagonals import by_distance, sum_diagonals
from regard.view.words_from_tokens import Word


@final
class UsualWeights:
    """The usual weights of heads over the same tokens: ``of`` computes those of one head."""

    def __init__(
        self, queries: int, keys: int, query_words: Sequence[Word], key_words: Sequence[Word], sink: int | None
    ) -> None:
        self._in_word = np.zeros(queries, dtype=bool)
        self._in_word[[piece for word in query_words for piece in word.pieces]] = True
        self._is_key = np.zeros(keys, dtype=bool)
        self._is_key[[piece for word in key_words for piece in word.pieces]] = True
        if sink is not None:
            self._is_key[sink] = False
        self._steps = dict(_steps_within_words(query_words))
        self._count: Float32[np.ndarray, "queries keys"] = self._sum_of_others(np.ones((queries, keys))).astype("f4")

    def of(self, weights: Float64[np.ndarray, "queries keys"]) -> Float64[np.ndarray, "queries keys"]:
        """Compute the usual weight of each pair; that of a query of no word is the mean over all words."""
        usual = self._sum_of_others(weights)
        is_counted = self._count > 0.5
        np.divide(usual, self._count, out=usual, where=is_counted)
        np.copyto(usual, 1 / weights.shape[1], where=~is_counted)
        return np.maximum(usual, 0.0, out=usual)

    def _sum_of_others(self, amounts: Float64[np.ndarray, "queries keys"]) -> Float64[np.ndarray, "queries keys"]:
        queries, keys = amounts.shape
        counts = self._in_word[:, None] & self._is_key
        others = amounts * counts
        sums = by_distance(sum_diagonals(others), queries)
        np.subtract(sums, others, out=others)
        for step, rows in self._steps.items():
            if 0 < step < keys:
                others[rows, :-step] -= amounts[rows + step, step:] * self._is_key[step:]
            elif 0 < -step < keys:
                others[rows, -step:] -= amounts[rows + step, :step] * self._is_key[:step]
        return others


def _steps_within_words(words: Sequence[Word]) -> Iterator[tuple[int, np.ndarray]]:
    """Each step from one piece of a word to another, and the pieces from which it leads to another."""
    starts: dict[int, list[int]] = {}
    for word in words:
        for piece in word.pieces:
            for other in word.pieces:
                if other != piece:
                    starts.setdefault(other - piece, []).append(piece)
    return ((step, np.array(pieces)) for step, pieces in starts.items())
