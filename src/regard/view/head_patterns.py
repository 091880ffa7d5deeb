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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Float64, Int

from regard.view.attention_layer import AttentionLayer
from regard.view.layer_reading import LayerReading
from regard.view.reading import Reading
from regard.view.words_from_tokens import words_of

MIN_EXCESS = 0.3
"""The score less chance from which a head has a pattern's name."""
MIN_QUERIES = 3
"""The number of queries for which the pattern is possible, below which it names no head."""


@final
@dataclass(frozen=True)
class HeadPattern:
    """One pattern in one head: its score, the score of uniform attention, and the queries for which it is possible."""

    name: str
    score: float
    chance: float
    queries: int

    @property
    def excess(self) -> float:
        """The score less chance."""
        return self.score - self.chance


def name_of_head(patterns: Sequence[HeadPattern]) -> HeadPattern | None:
    """Choose the pattern that names a head: well above chance; None for a head without such a pattern."""
    clear = [pattern for pattern in patterns if pattern.queries >= MIN_QUERIES and pattern.excess >= MIN_EXCESS]
    return max(clear, key=lambda pattern: pattern.excess, default=None)


@final
class LayerPatterns:
    """The patterns that are possible in a text under the mask of a layer; ``of`` scores them for a head's shares."""

    def __init__(self, pairs: Mapping[str, Int[np.ndarray, "pairs 2"]], layer: AttentionLayer) -> None:
        visible = _visible_keys(layer)
        keys = visible.sum(axis=1)
        self._possible: dict[str, tuple[Any, int, float]] = {}
        for name, some in pairs.items():
            at = tuple(some[visible[some[:, 0], some[:, 1]]].T)
            queries = len(np.unique(at[0]))
            if queries:
                self._possible[name] = at, queries, float((1 / keys[at[0]]).sum()) / queries

    def of(self, shares: Float64[np.ndarray, "queries keys"]) -> tuple[HeadPattern, ...]:
        """Score each pattern that is possible, in the order of the table above."""
        return tuple(
            HeadPattern(name, float(shares[at].sum()) / queries, chance, queries)
            for name, (at, queries, chance) in self._possible.items()
        )


def pairs_by_pattern(reading: Reading) -> dict[str, Int[np.ndarray, "pairs 2"]]:
    """Find the pairs (query, key) of each pattern, in the order of the table above; special tokens are no queries.

    The attention of one text to another has no patterns.
    """
    if reading.keys is not None:
        return {}
    tokens, size = reading.tokens, len(reading.tokens)
    queries = np.array([at for at, special in enumerate(tokens.special) if not special], dtype=np.int64)
    earlier: dict[str, list[int]] = {}
    duplicates: list[tuple[int, int]] = []
    for token in queries.tolist():
        duplicates += [(token, other) for other in earlier.setdefault(tokens.pieces[token], [])]
        earlier[tokens.pieces[token]].append(token)
    words = words_of(tokens)
    separators = [token for token, special in enumerate(tokens.special) if special and token > 0]
    offsets = {"previous token": -1, "next token": 1, "two before": -2, "two after": 2, "itself": 0}
    pairs: dict[str, Any] = {
        **{name: np.stack([queries, queries + step], axis=1) for name, step in offsets.items()},
        "same word": [(a, b) for word in words for a in word.pieces for b in word.pieces if a != b],
        "duplicate token": duplicates,
        "induction": [(token, other + 1) for token, other in duplicates if other + 1 != token],
        "first token": _every_pair(queries[queries > 0], [0]),
        "separators": _every_pair(queries, separators),
        "punctuation": _every_pair(queries, [token for word in words if not word.is_word for token in word.pieces]),
    }
    arrays = {name: np.asarray(some, dtype=np.int64).reshape(-1, 2) for name, some in pairs.items()}
    return {name: some[(some[:, 1] >= 0) & (some[:, 1] < size)] for name, some in arrays.items()}


def _every_pair(queries: Int[np.ndarray, " queries"], keys: Sequence[int]) -> Int[np.ndarray, "pairs 2"]:
    return np.stack([np.repeat(queries, len(keys)), np.tile(keys, len(queries)).astype(np.int64)], axis=1)


def _visible_keys(layer: AttentionLayer) -> Bool[np.ndarray, "queries keys"]:
    """Whether a query may attend to a key: by the mask, or else by whether any query attends to a later key."""
    allowed = layer.allowed if isinstance(layer, LayerReading) else None
    if allowed is not None:
        return allowed
    every = np.ones((layer.queries, layer.keys), dtype=bool)
    return np.tril(every) if layer.is_causal else every
