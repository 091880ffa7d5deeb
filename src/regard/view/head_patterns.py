"""Named patterns of attention: how much of a head's attention follows a rule that has a name in the literature.

    score_P  = mean over i of  sum over j in P(i) of share_ij          queries i with a key in P(i) that they may see
    chance_P = mean over i of  |P(i)| / |V(i)|                         uniform attention over the visible keys V(i)

    pattern            P(i), keys j among V(i)
    previous token     i - 1                                           Clark et al. 2019, section 3.1; Voita et al. 2019
    next token         i + 1                                           the same
    two before         i - 2                                           offsets, the baseline of syntactic heads:
    two after          i + 2                                           Voita et al. 2019, section 5.2.1
    itself             i
    same word          other tokens of the word of token i
    duplicate token    earlier tokens equal to token i                 Elhage et al. 2021; Wang et al. 2022
    induction          tokens after an earlier token equal to token i  Elhage et al. 2021; Olsson et al. 2022
    first token        0, unless i = 0                                 Xiao et al. 2024; [CLS]: Clark et al. 2019
    separators         special tokens but the first                    [SEP]: Clark et al. 2019, section 3.2
    punctuation        tokens of punctuation                           Clark et al. 2019, section 3.2

Special tokens are no queries. Weights below 0 count by their size (``shares``). A head has the name of the pattern that
exceeds chance most, if it does by ``MIN_EXCESS`` or more, over at least ``MIN_QUERIES`` queries: a name says what
the head does on this text, not what it is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Int

from regard.arguments import explain_arguments
from regard.language import translate_message
from regard.view.attention_layer import AttentionLayer
from regard.view.layer_reading import LayerReading
from regard.view.reading import Reading
from regard.view.words_from_tokens import words_of

_OFFSETS = {"previous token": -1, "next token": 1, "two before": -2, "two after": 2, "itself": 0}
PATTERN_NAMES = (
    *_OFFSETS,
    *("same word", "duplicate token", "induction", "first token", "separators", "punctuation"),
)
"""The names of all patterns, in the order of the table above."""


def pattern_label(name: str) -> str:
    """The name of a pattern for a reader; in tables and JSON it stays English."""
    return translate_message(name)


MIN_EXCESS = 0.3
"""The score less chance from which a head has a pattern's name."""
MIN_QUERIES = 3
"""The number of queries for which the pattern is possible, below which it names no head."""


@final
@explain_arguments
@dataclass(frozen=True)
class HeadPattern:
    """One pattern in one head: its score, the score of uniform attention, and the queries for which it is possible."""

    name: str
    score: float
    chance: float
    queries: int

    @property
    def excess(self) -> float:
        """The score less that of uniform attention, from -1 to 1."""
        return self.score - self.chance


def name_of_head(patterns: Sequence[HeadPattern]) -> HeadPattern | None:
    """Choose the pattern that names a head: well above chance; None for a head without such a pattern."""
    clear = [pattern for pattern in patterns if pattern.queries >= MIN_QUERIES and pattern.excess >= MIN_EXCESS]
    return max(clear, key=lambda pattern: pattern.excess, default=None)


@final
class LayerPatterns:
    """The patterns that are possible in a text under the mask of a layer."""

    def __init__(self, pairs: PatternPairs, layer: AttentionLayer) -> None:
        self._pairs, self._layer = pairs, layer
        has_mask = isinstance(layer, LayerReading) and layer.steps.mask is not None
        self._is_causal = not has_mask and layer.is_causal

    def of_queries(self, rows: range) -> dict[str, PossiblePairs]:
        """Find the pairs of each pattern that is possible for some of these queries, in order."""
        visible = self._visible_keys(rows)
        keys = visible.sum(axis=1)
        possible = {}
        for name, some in self._pairs.of_queries(rows).items():
            at = tuple(some[visible[some[:, 0], some[:, 1]]].T)
            queries = int(np.count_nonzero(np.diff(at[0], prepend=-1)))  # pairs are in the order of their queries
            if queries:
                possible[name] = PossiblePairs(at, queries, float((1 / keys[at[0]]).sum()))
        return possible

    def _visible_keys(self, rows: range) -> Bool[np.ndarray, "rows keys"]:
        """Whether a query may attend to a key: by the mask, or else by whether any query attends to a later key."""
        allowed = self._layer.allowed_of(rows) if isinstance(self._layer, LayerReading) else None
        if allowed is not None:
            return allowed
        every = np.ones((len(rows), self._layer.keys), dtype=bool)
        return np.tril(every, rows.start) if self._is_causal else every


@final
@dataclass(frozen=True, eq=False)
class PossiblePairs:
    """The pairs of a pattern among some queries, as indices of their rows, and the sum of the queries' chances."""

    at: tuple[Any, ...]
    queries: int
    chance: float


@final
class PatternPairs:
    """The pairs (query, key) of each pattern in a text; special tokens are no queries.

    The attention of one text to another has no patterns.
    """

    def __init__(self, reading: Reading) -> None:
        tokens = reading.tokens
        self._has_patterns, self._size = reading.keys is None, len(tokens)
        self._special = np.array(tokens.special, dtype=bool)
        self._separators = np.flatnonzero(self._special)
        self._separators = self._separators[self._separators > 0]
        numbers = {piece: number for number, piece in enumerate(dict.fromkeys(tokens.pieces))}
        self._piece = np.array([numbers[piece] for piece in tokens.pieces], dtype=np.int32)
        words = words_of(tokens) if self._has_patterns else ()
        self._punctuation = [token for word in words if not word.is_word for token in word.pieces]
        same = [(a, b) for word in words for a in word.pieces for b in word.pieces if a != b]
        self._same_word = np.array(sorted(same), dtype=np.int64).reshape(-1, 2)

    def of_queries(self, rows: range) -> dict[str, Int[np.ndarray, "pairs 2"]]:
        """Find the pairs of some queries, counted from the first of them, in the order of the table above."""
        if not self._has_patterns:
            return {}
        queries = rows.start + np.flatnonzero(~self._special[rows.start : rows.stop])
        duplicates = self._duplicates(queries)
        following = duplicates + np.array([0, 1])
        same = self._same_word
        pairs = {
            **{name: np.stack([queries, queries + step], axis=1) for name, step in _OFFSETS.items()},
            "same word": same[slice(*np.searchsorted(same[:, 0], [rows.start, rows.stop]))],
            "duplicate token": duplicates,
            "induction": following[following[:, 0] != following[:, 1]],
            "first token": _every_pair(queries[queries > 0], [0]),
            "separators": _every_pair(queries, self._separators),
            "punctuation": _every_pair(queries, self._punctuation),
        }
        return {
            name: some[(some[:, 1] >= 0) & (some[:, 1] < self._size)] - np.array([rows.start, 0])
            for name, some in pairs.items()
        }

    def _duplicates(self, queries: Int[np.ndarray, " queries"]) -> Int[np.ndarray, "pairs 2"]:
        """The pairs of a query and an earlier token that is equal and not special."""
        last = int(queries[-1]) if len(queries) else 0
        is_equal = (self._piece[queries, None] == self._piece[:last]) & ~self._special[:last]
        is_equal &= np.arange(last) < queries[:, None]
        row, key = np.nonzero(is_equal)
        return np.stack([queries[row], key], axis=1)


def _every_pair(
    queries: Int[np.ndarray, " queries"], keys: Sequence[int] | Int[np.ndarray, " keys"]
) -> Int[np.ndarray, "pairs 2"]:
    return np.stack([np.repeat(queries, len(keys)), np.tile(keys, len(queries)).astype(np.int64)], axis=1)
