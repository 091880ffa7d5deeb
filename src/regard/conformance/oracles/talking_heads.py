"""Talking-heads attention (Shazeer et al. 2020, section 4), with as many heads of each kind.

    scores[h]  = Q_h K_h^T / sqrt(d)
    logits[g]  = sum over h of scores[h] P[h, g]
    weights[g] = softmax(logits[g])
    mixed[f]   = sum over g of weights[g] R[g, f]
    output[f]  = mixed[f] V_f

A bias of pairs is added to the logits. Shapes: query (batch, heads, queries, head_dim); key and value (batch, key
heads, keys, ...); P and R (heads, heads); allowed (bool) is the same for all heads, and broadcasts to (batch, heads,
queries, keys); so does the bias.
"""

from typing import NamedTuple, final

import numpy as np

from regard.conformance.oracles.attention import sum_to
from regard.conformance.oracles.softmax import key_head, rows, softmax, visible_keys, weighted_sum


@final
class Gradients(NamedTuple):
    """The gradient of each input, with the input's shape; None for a bias that was not given."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    p: np.ndarray
    r: np.ndarray
    bias: np.ndarray | None


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    p: np.ndarray,
    r: np.ndarray,
    allowed: np.ndarray | None = None,
    bias: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the output and the mixed weights."""
    visible, _, _, _, mixed = _compute_weights(query, key, p, r, allowed, bias)
    return weighted_sum(mixed, value, visible), mixed


def backward(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    p: np.ndarray,
    r: np.ndarray,
    upstream: np.ndarray,
    allowed: np.ndarray | None = None,
    bias: np.ndarray | None = None,
) -> Gradients:
    """Return the gradients of sum(output * upstream); upstream has the output's shape.

    By the chain rule, one step of the forward pass at a time; d is the gradient of a step's result:

        dmixed[f] = dO_f V_f^T            dweights[g] = sum over f of R[g, f] dmixed[f]
        dlogits   = weights * (dweights - rowsum(weights * dweights))
        dscores[h] = sum over g of P[h, g] dlogits[g]
    """
    visible, scores, weights, scale, mixed = _compute_weights(query, key, p, r, allowed, bias)
    heads, key_heads = query.shape[1], key.shape[1]
    of_query, of_key, of_value = np.zeros(query.shape), np.zeros(key.shape), np.zeros(value.shape)
    of_p, of_r, of_logits = np.zeros(p.shape), np.zeros(r.shape), np.zeros(visible.shape)
    for batch, _, row, indices in rows(visible[:, :1]):
        groups = [key_head(head, heads, key_heads) for head in range(heads)]
        of_mixed = np.stack([value[batch, groups[f], indices] @ upstream[batch, f, row] for f in range(heads)])
        for f in range(heads):
            of_value[batch, groups[f], indices] += np.outer(mixed[batch, f, row, indices], upstream[batch, f, row])
        of_weights, weight = r @ of_mixed, weights[batch, :, row, indices].T
        of_r += weight @ of_mixed.T
        logits = weight * (of_weights - (weight * of_weights).sum(axis=1, keepdims=True))
        of_logits[batch, :, row, indices] = logits.T
        of_p += scores[batch, :, row, indices].T @ logits.T
        of_scores = p @ logits
        for h in range(heads):
            of_query[batch, h, row] += scale * of_scores[h] @ key[batch, groups[h], indices]
            of_key[batch, groups[h], indices] += scale * np.outer(of_scores[h], query[batch, h, row])
    of_bias = None if bias is None else sum_to(of_logits, bias.shape)
    return Gradients(of_query, of_key, of_value, of_p, of_r, of_bias)


def _compute_weights(
    query: np.ndarray,
    key: np.ndarray,
    p: np.ndarray,
    r: np.ndarray,
    allowed: np.ndarray | None,
    bias: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float, np.ndarray]:
    """Return the visible keys, the scores, the weights, the factor of the products, and the mixed weights."""
    heads, scale = query.shape[1], 1 / float(np.sqrt(query.shape[3]))
    visible = visible_keys(allowed, (*query.shape[:3], key.shape[2]))
    added = np.broadcast_to(0.0 if bias is None else bias, visible.shape)
    dtype = np.result_type(query, key, p, r, added)
    scores, logits, mixed = (np.zeros(visible.shape, dtype=dtype) for _ in range(3))
    for batch, head, row, indices in rows(visible):
        keys = key[batch, key_head(head, heads, key.shape[1]), indices]
        scores[batch, head, row, indices] = keys @ query[batch, head, row] * scale
    for batch, head, row, indices in rows(visible):
        for other in range(heads):
            logits[batch, head, row, indices] += scores[batch, other, row, indices] * p[other, head]
        logits[batch, head, row, indices] += added[batch, head, row, indices]
    weights = softmax(logits, visible)
    for batch, head, row, indices in rows(visible):
        for other in range(heads):
            mixed[batch, head, row, indices] += weights[batch, other, row, indices] * r[other, head]
    return visible, scores, weights, scale, mixed
