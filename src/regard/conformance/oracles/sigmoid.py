"""Sigmoid attention (Ramapuram et al. 2025, section 2), query by query, and its gradients.

    weights[i, j] = 1 / (1 + exp(-(q_i . k_j / sqrt(d) + pair_bias[i, j] + b)))
    b             = -log(number of visible keys of i), or given

Shapes: query (batch, heads, queries, head_dim); key and value (batch, key heads, keys, ...); allowed (bool) and
pair_bias broadcast to (batch, heads, queries, keys).
"""

import numpy as np

from regard.conformance.oracles.attention import Gradients, sum_to
from regard.conformance.oracles.softmax import key_head, rows, visible_keys, weighted_sum


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    allowed: np.ndarray | None = None,
    bias: float | None = None,
    pair_bias: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the output and the weights."""
    visible = visible_keys(allowed, (*query.shape[:3], key.shape[2]))
    of_pairs = np.broadcast_to(0.0 if pair_bias is None else pair_bias, visible.shape)
    weights = np.zeros(visible.shape, dtype=np.result_type(query, key, of_pairs))
    for batch, head, row, indices in rows(visible):
        keys = key[batch, key_head(head, query.shape[1], key.shape[1])]
        added = -np.log(indices.size) if bias is None else bias
        products = keys[indices] @ query[batch, head, row] / np.sqrt(query.shape[3])
        weights[batch, head, row, indices] = 1 / (1 + np.exp(-(products + of_pairs[batch, head, row, indices] + added)))
    return weighted_sum(weights, value, visible), weights


def backward(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    upstream: np.ndarray,
    allowed: np.ndarray | None = None,
    bias: float | None = None,
    pair_bias: np.ndarray | None = None,
) -> Gradients:
    """Return the gradients of sum(output * upstream); upstream has the output's shape.

    The derivative of a sigmoid w is w (1 - w), so with scores S and output O:

        dV_j += w_ij dO_i       dS_ij = w_ij (1 - w_ij) dO_i . v_j       dQ_i += dS_ij k_j / sqrt(d), dK_j likewise
    """
    _, weights = attention(query, key, value, allowed, bias, pair_bias)
    visible = visible_keys(allowed, weights.shape)
    of_query, of_key, of_value = np.zeros(query.shape), np.zeros(key.shape), np.zeros(value.shape)
    of_scores, factor = np.zeros(weights.shape), 1 / np.sqrt(query.shape[3])
    for batch, head, row, indices in rows(visible):
        group, above = key_head(head, query.shape[1], key.shape[1]), upstream[batch, head, row]
        weight = weights[batch, head, row, indices]
        slope = weight * (1 - weight) * (value[batch, group, indices] @ above)
        of_scores[batch, head, row, indices] = slope
        of_value[batch, group, indices] += np.outer(weight, above)
        of_query[batch, head, row] = factor * slope @ key[batch, group, indices]
        of_key[batch, group, indices] += factor * np.outer(slope, query[batch, head, row])
    return Gradients(of_query, of_key, of_value, None if pair_bias is None else sum_to(of_scores, pair_bias.shape))
