"""Forgetting attention (Lin et al. 2025, equations 4 to 7), pair by pair.

    weights[i, j] = exp(s_ij) / sum over visible j' of exp(s_ij')       over j <= position of i
    s_ij          = q_i . k_j / sqrt(d) + sum over visible l, j < l <= position of i, of log sigmoid(forget_l)

The last query has the position of the last key. Shapes: query (batch, heads, queries, head_dim); key and value (batch,
key heads, keys, ...); forget (batch, heads, keys, 1); allowed (bool) broadcasts to (batch, heads, queries, keys).
"""

import numpy as np

from regard.conformance.oracles.softmax import key_head, rows, softmax, visible_keys, weighted_sum


def attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, forget: np.ndarray, allowed: np.ndarray | None = None
) -> np.ndarray:
    """Return the output."""
    queries, keys = query.shape[2], key.shape[2]
    causal = np.arange(keys)[None, :] <= np.arange(queries)[:, None] + keys - queries
    visible = visible_keys(allowed, (*query.shape[:3], keys)) & causal
    scores = np.zeros(visible.shape, dtype=np.result_type(query, key, forget))
    for batch, head, row, indices in rows(visible):
        shared = key[batch, key_head(head, query.shape[1], key.shape[1])]
        for j in indices:
            between = indices[indices > j]
            decay = _log_sigmoid(forget[batch, head, between, 0]).sum()
            scores[batch, head, row, j] = shared[j] @ query[batch, head, row] / np.sqrt(query.shape[3]) + decay
    return weighted_sum(softmax(scores, visible), value, visible)


def _log_sigmoid(logits: np.ndarray) -> np.ndarray:
    """Logarithm of 1 / (1 + exp(-x)), or of its equal exp(x) / (1 + exp(x)), whichever does not overflow."""
    opposite = np.where(np.real(logits) < 0, logits, -logits)
    return np.where(np.real(logits) < 0, logits, 0) - np.log1p(np.exp(opposite))
