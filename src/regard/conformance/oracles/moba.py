"""Mixture of block attention (Lu et al. 2025, equations 2 to 8), one query at a time.

    the keys that query i may see, up to its position, are divided into blocks; it attends to the last block, and to the
    others with the largest q_i . mean of their keys

Of equal means the first are chosen. The last query has the position of the last key. Shapes: query (batch, heads,
queries, head_dim); key and value (batch, key heads, keys, ...); allowed (bool) broadcasts to (batch, heads, queries,
keys).
"""

import numpy as np

from regard.conformance.oracles.softmax import key_head, rows, visible_keys
from regard.conformance.oracles.top_k import attend, highest


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    block: int,
    chosen_blocks: int,
    allowed: np.ndarray | None = None,
) -> np.ndarray:
    """Return the output; ``chosen_blocks`` counts the own block."""
    queries, keys = query.shape[2], key.shape[2]
    causal = np.arange(keys)[None, :] <= np.arange(queries)[:, None] + keys - queries
    output = np.zeros((*query.shape[:3], value.shape[3]), dtype=np.result_type(query, key, value))
    for batch, head, row, indices in rows(visible_keys(allowed, (*query.shape[:3], keys)) & causal):
        group = key_head(head, query.shape[1], key.shape[1])
        *earlier, own = [indices[first : first + block] for first in range(0, len(indices), block)]
        means = [np.real(key[batch, group, keys_of_block]).sum(0) / len(keys_of_block) for keys_of_block in earlier]
        products = np.array([mean @ np.real(query[batch, head, row]) for mean in means])
        chosen = [earlier[place] for place in highest(products, chosen_blocks - 1)]
        of_query = query[batch, head, row]
        output[batch, head, row] = attend(
            of_query, key[batch, group], value[batch, group], list(np.concatenate([*chosen, own]))
        )
    return output
