"""Weights as shares of attention, used by statistics, findings and tables.

share_ij = w_ij                       if no weight is below 0
         = |w_ij| / sum_k |w_ik|      if weights are signed: how much a key counts, for or against

The words that the tokens of a classifier's answer attended to in the last layer.

    cls     the attention of the first token, averaged over the heads
    mean    the attention of all tokens, averaged over the tokens and the heads

A word's share is the sum over its tokens; special tokens count as words of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float, Float64

from regard.language import translate
from regard.view.attention_layer import AttentionLayer
from regard.view.reading import Reading
from regard.view.words_from_tokens import words_of


def signed_note(layers: Sequence[AttentionLayer]) -> str:
    """A sentence about shares of signed weights; "" if no layer has any."""
    if not any(layer.is_signed for layer in layers):
        return ""
    return translate("Weights may be below 0 here: a share is a weight's absolute value, divided by the sum of all.")


def shares_of(
    layer: AttentionLayer, head: int, queries: Sequence[int] | None = None
) -> Float64[np.ndarray, "rows keys"]:
    """Compute each key's share of the attention of some queries (default: all) of one head.

    A query that attends to nothing has a row of zeros.
    """
    return _to_shares(layer.weights_of(head, queries), layer)


def shares_by_head(layer: AttentionLayer) -> Iterator[Float64[np.ndarray, "queries keys"]]:
    """Compute the shares of each head in turn, as ``shares_of``."""
    return (_to_shares(weights, layer) for weights in layer.by_head())


_MAX_SHARES = 2**22
"""Shares of a head that are held at once, about: 32 MiB."""


def shares_by_block(
    layer: AttentionLayer,
) -> Iterator[tuple[range, Iterator[Float[np.ndarray, "rows first_keys"]]]]:
    """Compute the shares of consecutive queries, block by block, and of each block those of each head in turn.

    A text of up to 2,048 tokens is one block. Of a longer one no block is larger, so that memory stays bounded, and
    shares are those of ``weights_of_block``.
    """
    size = max(1, _MAX_SHARES // max(1, layer.keys))
    if size >= layer.queries:
        yield range(layer.queries), shares_by_head(layer)
        return
    for first in range(0, layer.queries, size):
        rows = range(first, min(layer.queries, first + size))
        yield rows, (shares_of_block(layer, head, rows) for head in range(layer.heads))


def shares_of_block(layer: AttentionLayer, head: int, queries: range) -> Float[np.ndarray, "rows first_keys"]:
    """Compute the shares of some queries of one head. See ``AttentionLayer.weights_of_block``."""
    return _to_shares(layer.weights_of_block(head, queries), layer)


def _to_shares(weights: Float[np.ndarray, "rows keys"], layer: AttentionLayer) -> Float[np.ndarray, "rows keys"]:
    if not layer.is_signed:
        return weights
    sizes = np.abs(weights)
    total = sizes.sum(axis=-1, keepdims=True)
    return np.divide(sizes, total, out=np.zeros_like(sizes), where=total > 0)


def mean_shares(layer: AttentionLayer) -> Float64[np.ndarray, "queries keys"]:
    """Compute the mean of the shares over all heads of a layer."""
    total = np.zeros((layer.queries, layer.keys))
    for shares in shares_by_head(layer):
        total += shares
    return total / layer.heads


MAX_LABELS, MAX_WORDS = 6, 8
"""Labels and words of an answer that views show."""


def answer_words(reading: Reading) -> tuple[tuple[str, float], ...]:
    """The words of a text and their shares, the largest first; none if the reading has no answer or no layer."""
    if reading.answer is None or not reading.layers:
        return ()
    weights = mean_shares(reading.layers[-1])
    row = weights[0] if reading.answer.pooling == "cls" else weights.mean(axis=0)
    words = [(word.label, float(row[list(word.pieces)].sum())) for word in words_of(reading.tokens)]
    special = [token for token, is_special in enumerate(reading.tokens.special) if is_special]
    words += [(reading.tokens.surface(token), float(row[token])) for token in special]
    return tuple(sorted(words, key=lambda pair: -pair[1]))
