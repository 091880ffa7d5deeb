"""Scaled dot-product attention (Vaswani 2017, section 3.2.1, equation 1), its statistics and its gradients.

    scores  = scale * query key^T + bias          scale is 1 / sqrt(head_dim) unless given
    weights = softmax(scores)                     over the allowed keys
    output  = weights value

With a softcap c, c tanh(scale * query key^T / c) takes the place of scale * query key^T (Gemma Team 2024, section 2).
Sinks, (heads,) or broadcasting to (batch, heads, queries, 1), are logits of the softmax without a value (OpenAI 2025,
section 2). With dropout, the weights are multiplied by ``dropout_mask``, which has 0 and 1 / (1 - p) and the shape of
the weights (Srivastava et al. 2014, section 10, with the factor in training).

Shapes: query (batch, heads, queries, head_dim); key (batch, key heads, keys, head_dim); value (batch, key
heads, keys, value_dim); allowed (bool) and bias broadcast to (batch, heads, queries, keys). A bias of -inf
forbids, as the mask does.
"""

from typing import NamedTuple, final

import numpy as np

from regard.conformance.oracles.softmax import key_head, rows, softmax, visible_keys, weighted_sum


@final
class Gradients(NamedTuple):
    """The gradient of each input, with the input's shape; None for a bias or sinks that were not given."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    bias: np.ndarray | None
    sinks: np.ndarray | None = None


@final
class Observation(NamedTuple):
    """Output and statistics of a call. Logarithms are natural, entropy is in nats."""

    output: np.ndarray  # (batch, heads, queries, value_dim)
    weights: np.ndarray  # (batch, heads, queries, keys)
    lse: np.ndarray  # (batch, heads, queries): log of the sum of exp(scores), -inf for an empty row
    entropy: np.ndarray  # (batch, heads, queries): -sum of weight log(weight), 0 for an empty row
    received: np.ndarray  # (batch, heads, keys): each key's weight, summed over queries
    top_keys: np.ndarray  # (batch, heads, queries, top): heaviest first, ties by lower index; -1: no more keys
    top_weights: np.ndarray  # (batch, heads, queries, top); 0 where there are no more keys
    rows: np.ndarray  # (batch, heads, requested rows, keys)
    sink_weight: np.ndarray | None = None  # (batch, heads, queries): 0 for an empty row
    max_score: np.ndarray | None = None  # (batch, heads, queries): of visible keys, -inf for an empty row


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    allowed: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: np.ndarray | None = None,
    dropout_mask: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the output and the weights, which are those before dropout."""
    visible = _visible(query, key, allowed, bias)
    scores = _scores(query, key, visible, bias, scale, softcap)
    weights = softmax(scores, visible, None if sinks is None else _of_queries(sinks))
    return weighted_sum(weights if dropout_mask is None else weights * dropout_mask, value, visible), weights


def observe(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    allowed: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    scale: float | None = None,
    top: int = 8,
    query_rows: tuple[int, ...] = (),
    softcap: float | None = None,
    sinks: np.ndarray | None = None,
) -> Observation:
    """Return the output and the statistics of the weights; top keys are among the keys that the query may see."""
    visible = _visible(query, key, allowed, bias)
    scores = _scores(query, key, visible, bias, scale, softcap)
    weights = softmax(scores, visible, None if sinks is None else _of_queries(sinks))
    max_score = np.full(visible.shape[:3], -np.inf)
    sink_logits = np.zeros(1) if sinks is None else _of_queries(sinks)
    of_queries = np.broadcast_to(sink_logits, (*visible.shape[:3], 1))[..., 0]
    sink_weight = np.zeros(visible.shape[:3])
    lse, entropy = np.full(visible.shape[:3], -np.inf), np.zeros(visible.shape[:3])
    top_keys, top_weights = np.full((*visible.shape[:3], top), -1), np.zeros((*visible.shape[:3], top))
    for batch, head, row, indices in rows(visible):
        row_scores, all_weights = scores[batch, head, row, indices], weights[batch, head, row]
        max_score[batch, head, row] = row_scores.max()
        if sinks is not None:
            row_scores = np.append(row_scores, of_queries[batch, head, row])
        lse[batch, head, row] = row_scores.max() + np.log(np.exp(row_scores - row_scores.max()).sum())
        if sinks is not None:
            sink_weight[batch, head, row] = np.exp(of_queries[batch, head, row] - lse[batch, head, row])
            all_weights = np.append(all_weights, sink_weight[batch, head, row])
        positive = all_weights[all_weights > 0]
        entropy[batch, head, row] = -(positive * np.log(positive)).sum()
        # A stable sort keeps equal weights in the order of their index.
        heaviest = indices[np.argsort(-weights[batch, head, row, indices], kind="stable")][:top]
        top_keys[batch, head, row, : heaviest.size] = heaviest
        top_weights[batch, head, row, : heaviest.size] = weights[batch, head, row, heaviest]
    return Observation(
        output=weighted_sum(weights, value, visible),
        weights=weights,
        lse=lse,
        entropy=entropy,
        received=weights.sum(axis=2),
        top_keys=top_keys,
        top_weights=top_weights,
        rows=weights[:, :, list(query_rows)],
        sink_weight=None if sinks is None else sink_weight,
        max_score=max_score,
    )


def backward(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    upstream: np.ndarray,
    allowed: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: np.ndarray | None = None,
    dropout_mask: np.ndarray | None = None,
) -> Gradients:
    """Return the gradients of sum(output * upstream); upstream has the output's shape.

    With P the weights, M the dropout mask, U the upstream gradient and C = scale * Q K^T before the cap c:

        dV = (P M)^T U      dP = M (U V^T)      D = rowsum(P dP)      dS = P (dP - D)
        dC = dS (1 - tanh(C / c)^2)             dQ = scale * dC K     dK = scale * dC^T Q
        dB = dS, summed where B was broadcast   dsink = -(weight of the sink) D, likewise
    """
    visible, factor = _visible(query, key, allowed, bias), _scale(query, scale)
    scores = _scores(query, key, visible, bias, scale, softcap)
    weights = softmax(scores, visible, None if sinks is None else _of_queries(sinks))
    kept = np.broadcast_to(1.0 if dropout_mask is None else dropout_mask, visible.shape)
    of_query, of_key, of_value = np.zeros(query.shape), np.zeros(key.shape), np.zeros(value.shape)
    of_scores, of_sinks = np.zeros(visible.shape), np.zeros((*visible.shape[:3], 1))
    for batch, head, row, indices in rows(visible):
        group = key_head(head, query.shape[1], key.shape[1])
        keys, share = key[batch, group, indices], weights[batch, head, row, indices]
        above, kept_row = upstream[batch, head, row], kept[batch, head, row, indices]
        of_value[batch, group, indices] += np.outer(share * kept_row, above)
        of_weights = kept_row * (value[batch, group, indices] @ above)
        total = share @ of_weights
        of_scores[batch, head, row, indices] = share * (of_weights - total)
        of_sinks[batch, head, row] = -(1 - share.sum()) * total
        slope = 1.0 if softcap is None else 1 - np.tanh(factor * (keys @ query[batch, head, row]) / softcap) ** 2
        of_products = factor * slope * of_scores[batch, head, row, indices]
        of_query[batch, head, row] = of_products @ keys
        of_key[batch, group, indices] += np.outer(of_products, query[batch, head, row])
    return Gradients(
        of_query,
        of_key,
        of_value,
        None if bias is None else sum_to(of_scores, bias.shape),
        None if sinks is None else sum_to(of_sinks, _of_queries(sinks).shape).reshape(sinks.shape),
    )


def sum_to(gradient: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Undo broadcasting: sum a gradient over every dimension along which one of `shape` was repeated."""
    padded = (1,) * (gradient.ndim - len(shape)) + tuple(shape)
    repeated = tuple(axis for axis, size in enumerate(padded) if size == 1 and gradient.shape[axis] != 1)
    return gradient.sum(axis=repeated, keepdims=True).reshape(shape)


def _visible(query: np.ndarray, key: np.ndarray, allowed: np.ndarray | None, bias: np.ndarray | None) -> np.ndarray:
    visible = visible_keys(allowed, (*query.shape[:3], key.shape[2]))
    return visible if bias is None else visible & (bias != -np.inf)


def _scale(query: np.ndarray, scale: float | None) -> float:
    return 1 / np.sqrt(query.shape[-1]) if scale is None else scale


def _of_queries(sinks: np.ndarray) -> np.ndarray:
    return sinks[None, :, None, None] if sinks.ndim == 1 else sinks


def _scores(
    query: np.ndarray,
    key: np.ndarray,
    visible: np.ndarray,
    bias: np.ndarray | None,
    scale: float | None,
    softcap: float | None = None,
) -> np.ndarray:
    """Scores of the visible pairs; -inf elsewhere."""
    scores = np.full(visible.shape, -np.inf, dtype=np.result_type(query, key, 0.0 if bias is None else bias))
    added = np.broadcast_to(0.0 if bias is None else bias, visible.shape)
    for batch, head, row, indices in rows(visible):
        keys = key[batch, key_head(head, query.shape[1], key.shape[1]), indices]
        scaled = _scale(query, scale) * (keys @ query[batch, head, row])
        capped = scaled if softcap is None else softcap * np.tanh(scaled / softcap)
        scores[batch, head, row, indices] = capped + added[batch, head, row, indices]
    return scores
