"""Gated linear attention (Yang et al. 2024, equation 3), pair by pair.

    weights[i, j] = scale * sum over channels c of q_ic k_jc decay_c
    decay         = product over visible l, j < l <= position of i, of alpha_l,    alpha = sigmoid(forget)^(1 / 16)

The last query has the position of the last key. Shapes: query (batch, heads, queries, head_dim); key and value (batch,
key heads, keys, ...); forget (batch, heads, keys, head_dim); allowed (bool) broadcasts to (batch, heads, queries,
keys).
"""

import numpy as np

from regard.conformance.oracles.softmax import key_head, rows, weighted_sum
from regard.conformance.oracles.state_space import causal_keys


def attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, forget: np.ndarray, allowed: np.ndarray | None = None
) -> np.ndarray:
    """Return the output."""
    visible = causal_keys(allowed, query, key)
    weights = np.zeros(visible.shape, dtype=np.result_type(query, key, forget))
    for batch, head, row, indices in rows(visible):
        keys = key[batch, key_head(head, query.shape[1], key.shape[1])]
        decayed = np.ones(query.shape[3], weights.dtype)
        for j in indices[::-1]:
            weights[batch, head, row, j] = (query[batch, head, row] * decayed) @ keys[j] / np.sqrt(query.shape[3])
            decayed = decayed * (1 / (1 + np.exp(-forget[batch, head, j]))) ** (1 / 16)
    return weighted_sum(weights, value, visible)
