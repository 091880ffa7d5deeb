"""Differential attention (Ye et al. 2025, equations 1 to 3), query by query.

    weights = softmax(Q1 K1^T / sqrt(d)) - lambda softmax(Q2 K2^T / sqrt(d))       [Q1; Q2] = Q, [K1; K2] = K
    lambda  = exp(a_1 . b_1) - exp(a_2 . b_2) + lambda_init
    lambda_init = 0.8 - 0.6 exp(-0.3 (l - 1))                                      l: the layer, counted from 1

``normalize`` is GroupNorm with one group a head, in the form of RMSNorm, times 1 - lambda_init.

Shapes: query (batch, heads, queries, 2 d); key (batch, key heads, keys, 2 d); value (batch, key heads, keys,
value_dim); a and b (2, d); allowed (bool) broadcasts to (batch, heads, queries, keys).
"""

import numpy as np

from regard.conformance.oracles.softmax import key_head, rows, softmax, visible_keys, weighted_sum


def lambda_init(layer: int) -> float:
    """The initial lambda of a layer, counted from 1."""
    return 0.8 - 0.6 * np.exp(-0.3 * (layer - 1))


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    depth: int,
    allowed: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the output before its normalisation, and the weights; ``depth`` is the number of layers below."""
    size = query.shape[3] // 2
    visible = visible_keys(allowed, (*query.shape[:3], key.shape[2]))
    maps = []
    for part in (slice(0, size), slice(size, 2 * size)):
        scores = np.zeros(visible.shape, dtype=np.result_type(query, key))
        for batch, head, row, indices in rows(visible):
            keys = key[batch, key_head(head, query.shape[1], key.shape[1]), indices][:, part]
            scores[batch, head, row, indices] = keys @ query[batch, head, row, part] / np.sqrt(size)
        maps.append(softmax(scores, visible))
    factor = np.exp(np.sum(a[0] * b[0])) - np.exp(np.sum(a[1] * b[1])) + lambda_init(depth + 1)
    weights = maps[0] - factor * maps[1]
    return weighted_sum(weights, value, visible), weights


def normalize(output: np.ndarray, depth: int, epsilon: float) -> np.ndarray:
    """Normalise the output of each head and query by its root mean square."""
    mean_square = np.mean(output**2, axis=-1, keepdims=True)
    return (1 - lambda_init(depth + 1)) * output / np.sqrt(mean_square + epsilon)
