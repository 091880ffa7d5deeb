"""Top-k attention (Gupta et al. 2021, equation 2), one query at a time.

    weights[i, j] = exp(s_ij) / sum over chosen j' of exp(s_ij')        over the visible j with the largest s_ij
    s_ij          = q_i . k_j / sqrt(d)

Of equal scores the first are chosen. Shapes: query (batch, heads, queries, head_dim); key and value (batch, key heads,
keys, ...); allowed (bool) broadcasts to (batch, heads, queries, keys).
"""

from collections.abc import Sequence

import numpy as np

from regard.conformance.oracles.softmax import key_head, rows, visible_keys


def attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, count: int, allowed: np.ndarray | None = None
) -> np.ndarray:
    """Return the output."""
    output = np.zeros((*query.shape[:3], value.shape[3]), dtype=np.result_type(query, key, value))
    for batch, head, row, indices in rows(visible_keys(allowed, (*query.shape[:3], key.shape[2]))):
        group = key_head(head, query.shape[1], key.shape[1])
        products = np.real(key[batch, group, indices]) @ np.real(query[batch, head, row])
        chosen = [indices[place] for place in highest(products, count)]
        output[batch, head, row] = attend(query[batch, head, row], key[batch, group], value[batch, group], chosen)
    return output


def highest(scores: np.ndarray, count: int) -> list[int]:
    """The places of the ``count`` highest scores, of equal ones the first."""
    return sorted(range(len(scores)), key=lambda place: (-scores[place], place))[:count]


def attend(query: np.ndarray, key: np.ndarray, value: np.ndarray, chosen: Sequence[int]) -> np.ndarray:
    """The output (value_dim,) of one query, from the chosen keys of its head."""
    scores = key[chosen] @ query / np.sqrt(len(query))
    exponentials = np.exp(scores - np.real(scores).max())
    return exponentials / exponentials.sum() @ value[chosen]
