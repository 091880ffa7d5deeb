"""Native sparse attention (Yuan et al. 2025, equations 5 to 12), one query at a time.

    output = sum over the three branches of sigmoid(gate) * softmax(q . k / sqrt(d)) v, over

    compressed blocks   complete ones; each key is a weighted mean of the block's keys per channel, each value a
                        weighted mean of its values, with the softmax of trained logits as weights
    chosen blocks       the own block, the first, the one before the own, and those with the largest sums of compressed
                        weights, each times the strides that the two blocks share, over the heads that share keys
    the window          the last ``window`` keys

A query may see the keys up to its position that are allowed, which must be the first ones. Shapes: query (batch, heads,
queries, head_dim); key and value (batch, key heads, keys, ...); gate (batch, heads, queries, 3); key_logits
(compressed_block, head_dim); value_logits (compressed_block,); allowed (bool) broadcasts to (batch, heads, queries,
keys).
"""

import numpy as np

from regard.conformance.oracles.softmax import key_head, rows, visible_keys
from regard.conformance.oracles.top_k import attend, highest


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    gate: np.ndarray,
    key_logits: np.ndarray,
    value_logits: np.ndarray,
    *,
    block: int,
    chosen_blocks: int,
    compressed_block: int,
    stride: int,
    window: int,
    allowed: np.ndarray | None = None,
) -> np.ndarray:
    """Return the output."""
    heads, queries, keys, size = query.shape[1], query.shape[2], key.shape[2], query.shape[3]
    causal = np.arange(keys)[None, :] <= np.arange(queries)[:, None] + keys - queries
    key_shares, value_shares = (np.exp(part) / np.exp(part).sum(0) for part in (key_logits, value_logits))
    gates = 1 / (1 + np.exp(-gate))
    dtype = np.result_type(query, key, value, gates, key_shares, value_shares)
    output = np.zeros((*query.shape[:3], value.shape[3]), dtype=dtype)
    for batch, head, row, indices in rows(visible_keys(allowed, (*query.shape[:3], keys)) & causal):
        group = key_head(head, heads, key.shape[1])
        of_keys, of_values = key[batch, group], value[batch, group]
        starts = range(0, len(indices) - compressed_block + 1, stride)
        short_keys = [(key_shares * of_keys[at : at + compressed_block]).sum(0) for at in starts]
        short_values = [value_shares @ of_values[at : at + compressed_block] for at in starts]
        own, importance = (len(indices) - 1) // block, np.zeros((len(indices) - 1) // block)
        for other in range(heads):
            if key_head(other, heads, key.shape[1]) == group and short_keys:
                scores = np.real(np.array(short_keys) @ query[batch, other, row]) / np.sqrt(size)
                weights = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
                for at, weight in zip(starts, weights, strict=True):
                    for number in range(own):
                        last = min(at + compressed_block, (number + 1) * block)
                        importance[number] += weight * (max(0, last - max(at, number * block)) // stride)
        importance[:1], importance[own - 1 :] = np.inf, np.inf
        chosen = [number * block + at for number in highest(importance, chosen_blocks - 1) for at in range(block)]
        branches = [attend(query[batch, head, row], of_keys, of_values, [*chosen, *range(own * block, len(indices))])]
        if short_keys:
            every = list(range(len(short_keys)))
            compressed = attend(query[batch, head, row], np.array(short_keys), np.array(short_values), every)
            output[batch, head, row] += gates[batch, head, row, 0] * compressed
        near = [at for at in indices if at > row + keys - queries - window]
        branches += [attend(query[batch, head, row], of_keys, of_values, near)] if near else []
        output[batch, head, row] += sum(
            share * branch for share, branch in zip(gates[batch, head, row, 1:], branches, strict=False)
        )
    return output
