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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float64

from regard.arguments import explain_arguments
from regard.errors import check_kind
from regard.view.head_patterns import HeadPattern, LayerPatterns, name_of_head, pairs_by_pattern
from regard.view.reading import Reading, Tokens
from regard.view.shares import shares_by_head
from regard.view.usual_weights import row_blocks, sum_diagonals

FIRST_TOKEN = "first token"
"""Name of the share of a token that is kept apart and is no special token."""


@final
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
    pairs = pairs_by_pattern(reading)
    found = []
    for number, layer in enumerate(reading.layers):
        patterns = LayerPatterns(pairs, layer)
        for head, shares in enumerate(shares_by_head(layer)):
            found.append(_head_statistics(shares, number, head, patterns.of(shares), reading.key_tokens, reading.sink))
    return tuple(found)


def describe_uniform(reading: Reading, heads: Sequence[HeadStatistics]) -> str:
    """Write the entropy of uniform attention with its value, for a text whose heads have these statistics.

    ln(keys); or, if no head attends to a later token, the mean of ln(1) .. ln(keys), since query i then has i keys.
    """
    keys = len(reading.key_tokens.pieces)
    if reading.keys is None and keys > 1 and not any(head.later for head in heads):
        return f"ln({keys}!)/{keys} = {math.lgamma(keys + 1) / keys:.2f}"
    return f"ln {keys} = {math.log(keys):.2f}"


def _head_statistics(
    weights: Float64[np.ndarray, "queries keys"],
    layer: int,
    head: int,
    patterns: tuple[HeadPattern, ...],
    keys: Tokens,
    sink: int | None,
) -> HeadStatistics:
    queries = len(weights)
    sums = sum_diagonals(weights)
    distances = np.arange(len(sums)) - (queries - 1)
    at_distance = dict(zip(distances.tolist(), sums.tolist(), strict=True))
    return HeadStatistics(
        layer=layer,
        head=head,
        entropy=max(0.0, sum(_sum_of_entropies(weights[block]) for block in row_blocks(*weights.shape)) / queries),
        distance=float(sums @ np.abs(distances)) / queries,
        itself=at_distance[0] / queries,
        previous=at_distance.get(-1, 0.0) / queries,
        next=at_distance.get(1, 0.0) / queries,
        later=float(sums[distances > 0].sum()) / queries,
        special=_special_token_shares(weights, keys, sink),
        patterns=patterns,
    )


def _sum_of_entropies(weights: Float64[np.ndarray, "queries keys"]) -> float:
    total = weights.sum(axis=1, keepdims=True)
    shares = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    logarithms = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    return -float(np.vdot(shares, logarithms))


def _special_token_shares(
    weights: Float64[np.ndarray, "queries keys"], keys: Tokens, sink: int | None
) -> dict[str, float]:
    shares: dict[str, float] = {}
    if sink is not None and not keys.special[sink]:
        shares[FIRST_TOKEN] = float(weights[:, sink].mean())
    for token, special in enumerate(keys.special):
        if special:
            share = float(weights[:, token].mean())
            shares[keys.pieces[token]] = shares.get(keys.pieces[token], 0.0) + share
    return shares
