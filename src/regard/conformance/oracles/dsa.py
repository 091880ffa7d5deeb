"""DeepSeek sparse attention (DeepSeek-AI 2025, equations 1 to 4), one query at a time.

    index[i, j]   = sum over index heads h of weight[h, i] max(0, index_query[h, i] . index_key[j])
    output[i]     = softmax over the visible j with the largest index[i, j], of equal ones the first
    loss          = mean over queries of KL(weights of exact attention, averaged over heads || softmax of index)

Shapes: query (batch, heads, queries, head_dim); key and value (batch, key heads, keys, ...); index_query (batch, index
heads, queries, index_dim); index_key (batch, 1, keys, index_dim); index_weight (batch, index heads, queries, 1);
allowed (bool) broadcasts to (batch, heads, queries, keys).
"""

import numpy as np

from regard.conformance.oracles.softmax import key_head, rows, visible_keys
from regard.conformance.oracles.top_k import attend, highest


def index_scores(index_query: np.ndarray, index_key: np.ndarray, index_weight: np.ndarray) -> np.ndarray:
    """The scores (queries, keys) of the indexer, of one batch entry."""
    scores = np.zeros((index_query.shape[1], index_key.shape[1]))
    for head, row, at in np.ndindex(*index_query.shape[:2], index_key.shape[1]):
        scores[row, at] += index_weight[head, row, 0] * max(0.0, index_query[head, row] @ index_key[0, at])
    return scores


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    index_query: np.ndarray,
    index_key: np.ndarray,
    index_weight: np.ndarray,
    count: int,
    allowed: np.ndarray | None = None,
) -> np.ndarray:
    """Return the output."""
    output = np.zeros((*query.shape[:3], value.shape[3]), dtype=np.result_type(query, key, value))
    inputs = [np.real(part) for part in (index_query, index_key, index_weight)]
    index = [index_scores(*entry) for entry in zip(*inputs, strict=True)]
    for batch, head, row, indices in rows(visible_keys(allowed, (*query.shape[:3], key.shape[2]))):
        group = key_head(head, query.shape[1], key.shape[1])
        chosen = [indices[place] for place in highest(index[batch][row, indices], count)]
        output[batch, head, row] = attend(query[batch, head, row], key[batch, group], value[batch, group], chosen)
    return output


def loss(
    query: np.ndarray,
    key: np.ndarray,
    index_query: np.ndarray,
    index_key: np.ndarray,
    index_weight: np.ndarray,
    allowed: np.ndarray,
    count: int | None = None,
) -> float:
    """The loss of the indexer, over the ``count`` chosen keys; None is all. ``allowed`` (batch, queries, keys)."""
    losses = []
    for batch, row in np.ndindex(query.shape[0], query.shape[2]):
        index = index_scores(index_query[batch], index_key[batch], index_weight[batch])[row]
        indices = np.flatnonzero(allowed[batch, row])
        if not indices.size:
            continue
        indices = indices if count is None else indices[highest(index[indices], count)]
        targets = []
        for head in range(query.shape[1]):
            group = key_head(head, query.shape[1], key.shape[1])
            scores = key[batch, group, indices] @ query[batch, head, row] / np.sqrt(query.shape[3])
            targets.append(np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum())
        target = np.mean(targets, axis=0)
        logs = index[indices] - index[indices].max()
        logs = logs - np.log(np.exp(logs).sum())
        losses.append((target * (np.log(target) - logs)).sum())
    return float(np.mean(losses))
