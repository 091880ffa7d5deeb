"""Sigmoid attention (Ramapuram et al. 2025, section 2), pair by pair.

    weights[i, j] = 1 / (1 + exp(-(q_i . k_j / sqrt(d) + b)))       b = -log(number of visible keys of i), or given

Shapes: query (batch, heads, queries, head_dim); key and value (batch, key heads, keys, ...); allowed (bool) broadcasts
to (batch, heads, queries, keys).
"""

import numpy as np

from oracles.softmax import key_head, rows, visible_keys, weighted_sum


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    allowed: np.ndarray | None = None,
    bias: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the output and the weights."""
    visible = visible_keys(allowed, (*query.shape[:3], key.shape[2]))
    weights = np.zeros(visible.shape, dtype=np.result_type(query, key))
    for batch, head, row, seen in rows(visible):
        keys = key[batch, key_head(head, query.shape[1], key.shape[1])]
        added = -np.log(seen.size) if bias is None else bias
        for j in seen:
            score = keys[j] @ query[batch, head, row] / np.sqrt(query.shape[3]) + added
            weights[batch, head, row, j] = 1 / (1 + np.exp(-score))
    return weighted_sum(weights, value, visible), weights
