"""Masked softmax and the weighted sum after it, one query row at a time.

    weights[i, j] = exp(scores[i, j]) / sum over visible j' of exp(scores[i, j'])
    output[i]     = sum over visible j of weights[i, j] value[j]

Only the keys that a query may see are read, so NaN or infinity at other keys has no effect. A query with no
visible keys gets weights of 0 and an output of 0. With sinks, the sum over visible j' has one term more, exp(sink).

Shapes: scores, weights, visible (batch, heads, queries, keys); value (batch, key heads, keys, value_dim);
output (batch, heads, queries, value_dim). Complex numbers are supported, for
``regard.conformance.oracles.complex_step``.
"""

from collections.abc import Iterator

import numpy as np


def visible_keys(allowed: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
    """Expand the mask to its full shape; None allows everything."""
    return np.ones(shape, dtype=bool) if allowed is None else np.broadcast_to(allowed, shape).astype(bool)


def rows(visible: np.ndarray) -> Iterator[tuple[int, int, int, np.ndarray]]:
    """Yield every query with visible keys: its batch, head and index, and the indexes of those keys."""
    for batch, head, query in np.ndindex(visible.shape[:3]):
        indices = visible[batch, head, query].nonzero()[0]
        if indices.size:
            yield batch, head, query, indices


def key_head(head: int, heads: int, key_heads: int) -> int:
    """The key head of a query head; adjacent query heads of a group share one (Ainslie 2023, section 2.2)."""
    return head // (heads // key_heads)


def softmax(scores: np.ndarray, visible: np.ndarray, sinks: np.ndarray | None = None) -> np.ndarray:
    """Weights that sum to 1 over the visible keys of each row, and its sink."""
    if sinks is not None:
        return _softmax_with_sinks(scores, visible, np.broadcast_to(sinks, (*visible.shape[:3], 1)))
    weights = np.zeros(visible.shape, dtype=scores.dtype)
    for batch, head, query, indices in rows(visible):
        row = scores[batch, head, query, indices]
        exponentials = np.exp(row - np.real(row).max())
        weights[batch, head, query, indices] = exponentials / exponentials.sum()
    return weights


def _softmax_with_sinks(scores: np.ndarray, visible: np.ndarray, sinks: np.ndarray) -> np.ndarray:
    weights = np.zeros(visible.shape, dtype=np.result_type(scores, sinks))
    for batch, head, query, indices in rows(visible):
        row = np.append(scores[batch, head, query, indices], sinks[batch, head, query])
        exponentials = np.exp(row - np.real(row).max())
        weights[batch, head, query, indices] = (exponentials / exponentials.sum())[:-1]
    return weights


def weighted_sum(weights: np.ndarray, value: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """The weighted sum of the visible values."""
    output = np.zeros((*visible.shape[:3], value.shape[-1]), dtype=np.result_type(weights, value))
    for batch, head, query, indices in rows(visible):
        values = value[batch, key_head(head, visible.shape[1], value.shape[1]), indices]
        output[batch, head, query] = weights[batch, head, query, indices] @ values
    return output


def backward(
    weights: np.ndarray, value: np.ndarray, upstream: np.ndarray, visible: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of the scores and of the value, given the gradient of the output.

    With P the weights, S the scores, V the value and O = P V:

        dV = P^T dO
        dP = dO V^T
        dS = P * (dP - rowsum(P * dP))      since dP[j] / dS[k] = P[j] (1[j = k] - P[k])
    """
    scores_gradient, value_gradient = np.zeros(visible.shape), np.zeros(value.shape)
    for batch, head, query, indices in rows(visible):
        group = key_head(head, visible.shape[1], value.shape[1])
        row, above = weights[batch, head, query, indices], upstream[batch, head, query]
        value_gradient[batch, group, indices] += np.outer(row, above)
        weights_gradient = value[batch, group, indices] @ above
        scores_gradient[batch, head, query, indices] = row * (weights_gradient - row @ weights_gradient)
    return scores_gradient, value_gradient
