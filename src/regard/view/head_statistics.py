"""Statistics of each head's attention over a text.

For weights p of one query over the keys, averaged over all queries of the text:

    entropy  = -sum_j p_j ln p_j          in nats: 0 for a single token; uniform attention: ``describe_uniform``
    distance = sum_j p_j |j - i|          mean distance from query i to its keys, in tokens

and the shares of the special tokens, of the token that is kept apart (``Reading.sink``), of the token itself, of the
one before, of the one after, and of all later ones; and the named patterns (``head_patterns``). If weights do not sum
to 1, as with a Gaussian window, they are normalised for the entropy. If weights are signed, p are shares of their
absolute size (``shares``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Float64

from regard.arguments import explain_arguments
from regard.errors import check_kind
from regard.view.head_patterns import (
    PATTERN_NAMES,
    HeadPattern,
    LayerPatterns,
    PatternPairs,
    PossiblePairs,
    name_of_head,
)
from regard.view.reading import Reading
from regard.view.shares import shares_by_block
from regard.view.usual_weights import row_blocks, sum_diagonals

FIRST_TOKEN = "first token"
"""Name of the share of a token that is kept apart and is no special token."""


@final
@explain_arguments
@dataclass(frozen=True)
class HeadStatistics:
    """Statistics of one head over one text: entropy in nats, distance in tokens, the rest shares from 0 to 1.

    ``patterns`` are the named patterns that are possible in the text.
    """

    layer: int
    head: int
    entropy: float
    distance: float
    itself: float
    previous: float
    next: float
    later: float
    special: dict[str, float]
    patterns: tuple[HeadPattern, ...]

    @property
    def pattern(self) -> HeadPattern | None:
        """The pattern that names the head: well above chance; None for a head without such a pattern."""
        return name_of_head(self.patterns)


@explain_arguments
def statistics_of(reading: Reading) -> tuple[HeadStatistics, ...]:
    """Compute the statistics of every head, in order of layer and head.

    Those of ``without_marks(reading)`` show what heads do beside their attention to special tokens.
    """
    check_kind("reading", reading, Reading, do="make one with regard.view.read")
    pairs = PatternPairs(reading)
    found: list[HeadStatistics] = []
    for number, layer in enumerate(reading.layers):
        patterns = LayerPatterns(pairs, layer)
        heads = [HeadSums(reading) for _ in range(layer.heads)]
        for rows, by_head in shares_by_block(layer):
            possible = patterns.of_queries(rows)
            for head, shares in zip(heads, by_head, strict=True):
                head.add(shares, rows, possible)
        found += [sums.statistics(number, head) for head, sums in enumerate(heads)]
    return tuple(found)


def describe_uniform(reading: Reading, heads: Sequence[HeadStatistics]) -> str:
    """Write the entropy of uniform attention with its value, for a text whose heads have these statistics.

    ln(keys); or, if no head attends to a later token, the mean of ln(1) .. ln(keys), since query i then has i keys.
    """
    keys = len(reading.key_tokens.pieces)
    if reading.keys is None and keys > 1 and not any(head.later for head in heads):
        return f"ln({keys}!)/{keys} = {math.lgamma(keys + 1) / keys:.2f}"
    return f"ln {keys} = {math.log(keys):.2f}"


@final
class HeadSums:
    """Sums of the shares of one head over blocks of its queries, from which its statistics follow.

    ``by_distance`` are the sums at each distance from query to key, in the order of ``sum_diagonals``.
    """

    def __init__(self, reading: Reading) -> None:
        keys, sink = reading.key_tokens, reading.sink
        self._queries = len(reading.tokens)
        self._special: dict[int, tuple[str, float]] = {}
        if sink is not None and not keys.special[sink]:
            self._special[sink] = FIRST_TOKEN, 0.0
        self._special |= {token: (keys.pieces[token], 0.0) for token, special in enumerate(keys.special) if special}
        self._patterns: dict[str, tuple[float, float, int]] = {}
        self._entropy = 0.0
        self.by_distance: Float64[np.ndarray, " distances"] = np.zeros(self._queries + len(keys) - 1)

    def add(
        self, shares: Float[np.ndarray, "rows first_keys"], rows: range, possible: Mapping[str, PossiblePairs]
    ) -> None:
        """Add the shares of some consecutive queries, and the pairs of patterns that are possible for them."""
        sums = sum_diagonals(shares)
        first = self._queries - rows.stop
        self.by_distance[first : first + len(sums)] += sums
        self._entropy += sum(_sum_of_entropies(shares[block]) for block in row_blocks(*shares.shape))
        for token, (name, share) in self._special.items():
            if token < shares.shape[1]:
                self._special[token] = name, share + float(shares[:, token].sum())
        for name, pairs in possible.items():
            score, chance, queries = self._patterns.get(name, (0.0, 0.0, 0))
            score += float(shares[pairs.at].sum())
            self._patterns[name] = score, chance + pairs.chance, queries + pairs.queries

    def statistics(self, layer: int, head: int) -> HeadStatistics:
        """Compute the statistics of the head of this number in the layer of this number."""
        sums, queries = self.by_distance, self._queries
        distances = np.arange(len(sums)) - (queries - 1)
        at_distance = dict(zip((-1, 0, 1), (float(sums[distances == step].sum()) for step in (-1, 0, 1)), strict=True))
        special: dict[str, float] = {}
        for name, share in self._special.values():
            special[name] = special.get(name, 0.0) + share / queries
        return HeadStatistics(
            layer=layer,
            head=head,
            entropy=max(0.0, self._entropy / queries),
            distance=float(sums @ np.abs(distances)) / queries,
            itself=at_distance[0] / queries,
            previous=at_distance[-1] / queries,
            next=at_distance[1] / queries,
            later=float(sums[distances > 0].sum()) / queries,
            special=special,
            patterns=tuple(
                HeadPattern(name, score / count, chance / count, count)
                for name, (score, chance, count) in sorted(
                    self._patterns.items(), key=lambda pattern: PATTERN_NAMES.index(pattern[0])
                )
            ),
        )


def _sum_of_entropies(weights: Float[np.ndarray, "queries keys"]) -> float:
    total = weights.sum(axis=1, keepdims=True)
    shares = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    logarithms = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    return -float(np.vdot(shares, logarithms))
