"""Talking-heads attention (Shazeer et al. 2020, section 4), with as many heads of each kind.

    scores[h]  = Q_h K_h^T / sqrt(d)
    logits[g]  = sum over h of scores[h] P[h, g]
    weights[g] = softmax(logits[g])
    mixed[f]   = sum over g of weights[g] R[g, f]
    output[f]  = mixed[f] V_f

Shapes: query (batch, heads, queries, head_dim); key and value (batch, key heads, keys, ...); P and R (heads, heads);
allowed (bool) is the same for all heads, and broadcasts to (batch, heads, queries, keys).
"""

import numpy as np

from oracles.softmax import key_head, rows, softmax, visible_keys, weighted_sum


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    p: np.ndarray,
    r: np.ndarray,
    allowed: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the output and the mixed weights."""
    heads = query.shape[1]
    visible = visible_keys(allowed, (*query.shape[:3], key.shape[2]))
    dtype = np.result_type(query, key, p, r)
    logits, mixed = np.zeros(visible.shape, dtype=dtype), np.zeros(visible.shape, dtype=dtype)
    for batch, head, row, seen in rows(visible):
        for other in range(heads):
            keys = key[batch, key_head(other, heads, key.shape[1]), seen]
            scores = keys @ query[batch, other, row] / np.sqrt(query.shape[3])
            logits[batch, head, row, seen] += scores * p[other, head]
    weights = softmax(logits, visible)
    for batch, head, row, seen in rows(visible):
        for other in range(heads):
            mixed[batch, head, row, seen] += weights[batch, other, row, seen] * r[other, head]
    return weighted_sum(mixed, value, visible), mixed
