"""Linformer (Wang 2020, equation 7), one head and one query at a time.

    output[i] = softmax(q_i . (E K) / sqrt(head_dim)) (F V)

E and F have a column per key; keys that no query may see are omitted together with their columns. Shapes: query
(batch, heads, queries, head_dim); key and value (batch, key heads, keys, ...); key_projection and value_projection
(projected, length), or (heads, projected, length) if each head has its own, of which the first columns belong to the
keys. The mask is the same for all queries.
"""

import numpy as np

from regard.conformance.oracles.softmax import key_head, visible_keys


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    key_projection: np.ndarray,
    value_projection: np.ndarray,
    allowed: np.ndarray | None = None,
) -> np.ndarray:
    """Return the output; the paper defines no weights over keys."""
    visible = visible_keys(allowed, (*query.shape[:3], key.shape[2]))
    assert (visible == visible[:, :, :1]).all(), "a query sees other keys than its neighbour"
    dtype = np.result_type(query, key, value, key_projection, value_projection)
    output = np.zeros((*query.shape[:3], value.shape[3]), dtype=dtype)
    for batch, head, row in np.ndindex(query.shape[:3]):
        indices, group = np.flatnonzero(visible[batch, head, row]), key_head(head, query.shape[1], key.shape[1])
        if indices.size:
            of_key, of_value = (
                matrix if matrix.ndim == 2 else matrix[head] for matrix in (key_projection, value_projection)
            )
            keys, values = (
                of_key[:, indices] @ key[batch, group, indices],
                of_value[:, indices] @ value[batch, group, indices],
            )
            scores = keys @ query[batch, head, row] / np.sqrt(query.shape[3])
            exponentials = np.exp(scores - np.real(scores).max())
            output[batch, head, row] = exponentials / exponentials.sum() @ values
    return output
