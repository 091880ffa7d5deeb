"""Retention (Sun et al. 2023, equation 5), pair by pair.

    weights[i, j] = scale * gamma^(visible tokens after j, up to i) * q_i . k_j      over j <= position of i

gamma has one number for each head. The last query has the position of the last key. Shapes: query (batch, heads,
queries, head_dim); key and value (batch, key heads, keys, ...); allowed (bool) broadcasts to (batch, heads, queries,
keys).
"""

import numpy as np

from regard.conformance.oracles.softmax import key_head, rows, weighted_sum
from regard.conformance.oracles.state_space import causal_keys


def attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, gamma: np.ndarray, allowed: np.ndarray | None = None
) -> np.ndarray:
    """Return the output."""
    visible = causal_keys(allowed, query, key)
    weights = np.zeros(visible.shape, dtype=np.result_type(query, key))
    for batch, head, row, indices in rows(visible):
        keys = key[batch, key_head(head, query.shape[1], key.shape[1])]
        for place, j in enumerate(indices):
            distance = len(indices) - 1 - place
            product = keys[j] @ query[batch, head, row] / np.sqrt(query.shape[3])
            weights[batch, head, row, j] = gamma[head] ** distance * product
    return weighted_sum(weights, value, visible)
