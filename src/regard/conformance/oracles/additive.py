"""Additive attention (Bahdanau 2015, section 3.1 and appendix A.1.2), once per head.

    score(query, key) = v . tanh(W_query query + W_key key)
    weights = softmax(scores)      over the allowed keys; there is no scale
    output  = weights value

Shapes: query (batch, heads, queries, head_dim); key and value (batch, key heads, keys, ...); query_weight and
key_weight (heads, hidden, head_dim), as the paper's W_a and U_a; score_vector (heads, hidden), as its v_a.
"""

from typing import NamedTuple, final

import numpy as np

from regard.conformance.oracles.softmax import backward as softmax_backward
from regard.conformance.oracles.softmax import key_head, rows, softmax, visible_keys, weighted_sum


@final
class Gradients(NamedTuple):
    """The gradient of each input, with the input's shape."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    query_weight: np.ndarray
    key_weight: np.ndarray
    score_vector: np.ndarray


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    query_weight: np.ndarray,
    key_weight: np.ndarray,
    score_vector: np.ndarray,
    allowed: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the output and the weights."""
    visible = visible_keys(allowed, (*query.shape[:3], key.shape[2]))
    scores = np.full(visible.shape, -np.inf, dtype=np.result_type(query, key, query_weight, key_weight, score_vector))
    for batch, head, row, indices in rows(visible):
        keys = key[batch, key_head(head, query.shape[1], key.shape[1]), indices]
        hidden = np.tanh(query_weight[head] @ query[batch, head, row] + keys @ key_weight[head].T)
        scores[batch, head, row, indices] = hidden @ score_vector[head]
    weights = softmax(scores, visible)
    return weighted_sum(weights, value, visible), weights


def backward(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    query_weight: np.ndarray,
    key_weight: np.ndarray,
    score_vector: np.ndarray,
    upstream: np.ndarray,
    allowed: np.ndarray | None = None,
) -> Gradients:
    """Return the gradients of sum(output * upstream); upstream has the output's shape.

    With a = W_query q + W_key k and T = tanh(a), from S = v . T:

        dv = dS T                  da = dS v (1 - T^2)
        dW_query = da q^T          dq = W_query^T da          likewise for the key
    """
    _, weights = attention(query, key, value, query_weight, key_weight, score_vector, allowed)
    visible = visible_keys(allowed, weights.shape)
    scores_gradient, value_gradient = softmax_backward(weights, value, upstream, visible)
    inputs = (query, key, value, query_weight, key_weight, score_vector)
    gradients = Gradients(*(np.zeros(part.shape) for part in inputs))
    gradients.value[...] = value_gradient
    for batch, head, row, indices in rows(visible):
        group = key_head(head, query.shape[1], key.shape[1])
        keys, this_query = key[batch, group, indices], query[batch, head, row]
        hidden = np.tanh(query_weight[head] @ this_query + keys @ key_weight[head].T)
        above = scores_gradient[batch, head, row, indices]
        inner = np.outer(above, score_vector[head]) * (1 - hidden**2)
        gradients.score_vector[head] += above @ hidden
        gradients.query_weight[head] += np.outer(inner.sum(axis=0), this_query)
        gradients.key_weight[head] += inner.T @ keys
        gradients.query[batch, head, row] = inner.sum(axis=0) @ query_weight[head]
        gradients.key[batch, group, indices] += inner @ key_weight[head]
    return gradients
