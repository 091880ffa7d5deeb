"""Predictive local attention (Luong 2015, section 3.2, equations 9 and 10), one query at a time.

    p_i           = F + S sigmoid(v . tanh(W_p q_i))      F: the first visible key, S: keys from F to the last
    weights[i, j] = softmax(q_i W k_j) exp(-(j - p_i)^2 / (2 (D / 2)^2))       over visible j, p_i - D <= j <= p_i + D
    output[i]     = sum over j of weights[i, j] value[j]

The softmax is over those keys only, and j counts from 0. Shapes: query (batch, heads, queries, head_dim); key and
value (batch, key heads, keys, ...); weight and position_weight (heads, head_dim, head_dim); position_vector (heads,
head_dim).
"""

import numpy as np

from regard.conformance.oracles.softmax import key_head, rows, visible_keys, weighted_sum


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    weight: np.ndarray,
    position_weight: np.ndarray,
    position_vector: np.ndarray,
    window: int,
    allowed: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the output and the weights."""
    visible = visible_keys(allowed, (*query.shape[:3], key.shape[2]))
    weights = np.zeros(visible.shape, dtype=np.result_type(query, key, weight, position_weight, position_vector))
    for batch, head, row, indices in rows(visible):
        this_query = query[batch, head, row]
        share = 1 / (1 + np.exp(-position_vector[head] @ np.tanh(position_weight[head] @ this_query)))
        center = indices[0] + (indices[-1] - indices[0] + 1) * share if indices.size else 0.0
        inside = indices[np.abs(indices - np.real(center)) <= window]
        if inside.size:
            scores = key[batch, key_head(head, query.shape[1], key.shape[1]), inside] @ (this_query @ weight[head])
            exponentials = np.exp(scores - np.real(scores).max())
            bell = np.exp(-((inside - center) ** 2) / (2 * (window / 2) ** 2))
            weights[batch, head, row, inside] = exponentials / exponentials.sum() * bell
    return weighted_sum(weights, value, visible), weights
