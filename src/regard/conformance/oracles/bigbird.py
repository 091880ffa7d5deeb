"""BigBird (Zaheer 2020, section 2 and appendix D), one head and one query at a time.

    a global token attends to all keys; another query to the keys of the blocks around its own, to those of its random
    blocks, and to global tokens

Shapes: query (batch, heads, queries, head_dim); key and value (batch, key heads, keys, ...); allowed (bool) broadcasts
to (batch, heads, queries, keys); random_blocks[head][block] lists blocks of keys.
"""

from collections.abc import Collection, Sequence

import numpy as np

from regard.conformance.oracles.softmax import key_head, visible_keys


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    block: int,
    window_blocks: int,
    random_blocks: Sequence[Sequence[Collection[int]]],
    global_tokens: Collection[int],
    allowed: np.ndarray | None = None,
    first: int = 0,
) -> np.ndarray:
    """Return the output (batch, heads, queries, value_dim). Blocks are counted from the token ``first``."""
    visible = visible_keys(allowed, (*query.shape[:3], key.shape[2]))
    output = np.zeros((*query.shape[:3], value.shape[3]), dtype=np.result_type(query, key, value))
    for batch, head, row in np.ndindex(query.shape[:3]):
        position, group = row + key.shape[2] - query.shape[2], key_head(head, query.shape[1], key.shape[1])
        indices = [
            j
            for j in range(key.shape[2])
            if visible[batch, head, row, j]
            and may_attend(position, j, block, window_blocks, random_blocks[head], global_tokens, first)
        ]
        if indices:
            scores = key[batch, group, indices] @ query[batch, head, row] / np.sqrt(query.shape[3])
            exponentials = np.exp(scores - np.real(scores).max())
            output[batch, head, row] = exponentials / exponentials.sum() @ value[batch, group, indices]
    return output


def may_attend(
    position: int,
    key: int,
    block: int,
    window_blocks: int,
    random_blocks: Sequence[Collection[int]],
    global_tokens: Collection[int],
    first: int,
) -> bool:
    """Whether the token at a position may attend to a key. Positions before 0 have no token, and no block."""
    if position in global_tokens or key in global_tokens:
        return True
    if position < first or key < first:
        return False
    of_query, of_key = (position - first) // block, (key - first) // block
    return abs(of_query - of_key) <= window_blocks // 2 or of_key in random_blocks[of_query]
