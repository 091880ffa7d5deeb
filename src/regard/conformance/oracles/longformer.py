"""Longformer (Beltagy 2020, section 3.1), one head and one query at a time.

    ordinary token    attends to keys within window / 2 steps of `dilation` tokens on each side, and to global tokens
    global token      attends to all keys, with its own query, keys and values if they are given

Shapes: query (batch, heads, queries, head_dim); key and value (batch, key heads, keys, ...); allowed (bool) broadcasts
to (batch, heads, queries, keys); is_global (batch, keys); dilation has one number for each head.
"""

import numpy as np

from regard.conformance.oracles.softmax import key_head, visible_keys


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    window: int,
    is_global: np.ndarray,
    allowed: np.ndarray | None = None,
    dilation: tuple[int, ...] = (1,),
    global_query: np.ndarray | None = None,
    global_key: np.ndarray | None = None,
    global_value: np.ndarray | None = None,
) -> np.ndarray:
    """Return the output (batch, heads, queries, value_dim)."""
    visible = visible_keys(allowed, (*query.shape[:3], key.shape[2]))
    global_query = query if global_query is None else global_query
    global_key = key if global_key is None else global_key
    global_value = value if global_value is None else global_value
    inputs = (query, key, value, global_query, global_key, global_value)
    output = np.zeros((*query.shape[:3], value.shape[3]), dtype=np.result_type(*inputs))
    for batch, head, row in np.ndindex(query.shape[:3]):
        position = row + key.shape[2] - query.shape[2]
        if position >= 0 and is_global[batch, position]:
            indices = [j for j in range(key.shape[2]) if visible[batch, head, row, j]]
            from_query, keys, values = global_query, global_key, global_value
        else:
            steps = dilation[head % len(dilation)]
            near = [position + steps * n for n in range(-(window // 2), window // 2 + 1)]
            indices = [
                j for j in range(key.shape[2]) if visible[batch, head, row, j] and (j in near or is_global[batch, j])
            ]
            from_query, keys, values = query, key, value
        if indices:
            of_keys = keys[batch, key_head(head, query.shape[1], keys.shape[1])][indices]
            of_values = values[batch, key_head(head, query.shape[1], values.shape[1])][indices]
            scores = of_keys @ from_query[batch, head, row] / np.sqrt(query.shape[3])
            exponentials = np.exp(scores - np.real(scores).max())
            output[batch, head, row] = exponentials / exponentials.sum() @ of_values
    return output
