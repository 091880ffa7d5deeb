"""Linear attention (Katharopoulos 2020, equation 4 with the features of equation 7), pair by pair.

    weights[i, j] = phi(q_i) . phi(k_j) / sum over visible j' of phi(q_i) . phi(k_j')        phi(x) = elu(x) + 1
    output[i]     = sum over visible j of weights[i, j] value[j]

Shapes: query (batch, heads, queries, head_dim); key and value (batch, key heads, keys, ...); allowed (bool) broadcasts
to (batch, heads, queries, keys).
"""

import numpy as np

from regard.conformance.oracles.softmax import key_head, rows, visible_keys, weighted_sum


def attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, allowed: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the output and the weights."""
    visible = visible_keys(allowed, (*query.shape[:3], key.shape[2]))
    weights = np.zeros(visible.shape, dtype=np.result_type(query, key))
    for batch, head, row, indices in rows(visible):
        keys = key[batch, key_head(head, query.shape[1], key.shape[1]), indices]
        products = features(keys) @ features(query[batch, head, row])
        weights[batch, head, row, indices] = products / products.sum()
    return weighted_sum(weights, value, visible), weights


def features(x: np.ndarray) -> np.ndarray:
    """elu(x) + 1: x + 1 above 0, exp(x) below; for complex numbers the real part decides."""
    below = np.real(x) <= 0
    return np.where(below, np.exp(np.where(below, x, 0)), x + 1)
