"""Multiplicative attention: the three scores of Luong 2015, equation 8, once per head.

    dot      score(query, key) = query . key
    general  score(query, key) = query^T W key
    concat   score(query, key) = v . tanh(W [query; key])

followed by softmax over the allowed keys and the weighted sum of the values. There is no scale.

Shapes: query (batch, heads, queries, head_dim); key and value (batch, key heads, keys, ...). `general` has W
(heads, head_dim, head_dim); `concat` has W (heads, hidden, 2 head_dim) and v (heads, hidden).
"""

from collections.abc import Callable

import numpy as np

from regard.conformance.oracles.softmax import key_head, rows, softmax, visible_keys, weighted_sum

# (head, one query (d), the keys it sees (n, d)) -> scores (n)
Score = Callable[[int, np.ndarray, np.ndarray], np.ndarray]


def dot(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, allowed: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the output and the weights."""
    return _attend(query, key, value, allowed, lambda head, this_query, keys: keys @ this_query)


def general(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    weight: np.ndarray,
    allowed: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the output and the weights."""

    def score(head: int, this_query: np.ndarray, keys: np.ndarray) -> np.ndarray:
        return keys @ (this_query @ weight[head])

    return _attend(query, key, value, allowed, score, weight)


def concat(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    weight: np.ndarray,
    score_vector: np.ndarray,
    allowed: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the output and the weights."""

    def score(head: int, this_query: np.ndarray, keys: np.ndarray) -> np.ndarray:
        joined = np.stack([np.concatenate([this_query, this_key]) for this_key in keys])
        return np.tanh(joined @ weight[head].T) @ score_vector[head]

    return _attend(query, key, value, allowed, score, weight, score_vector)


def _attend(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    allowed: np.ndarray | None,
    score: Score,
    *trained: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    visible = visible_keys(allowed, (*query.shape[:3], key.shape[2]))
    scores = np.full(visible.shape, -np.inf, dtype=np.result_type(query, key, *trained))
    for batch, head, row, indices in rows(visible):
        keys = key[batch, key_head(head, query.shape[1], key.shape[1]), indices]
        scores[batch, head, row, indices] = score(head, query[batch, head, row], keys)
    weights = softmax(scores, visible)
    return weighted_sum(weights, value, visible), weights
