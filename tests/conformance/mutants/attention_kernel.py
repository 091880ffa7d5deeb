"""Exact attention over tiles of keys with a running softmax, forward and backward, in the dtype of its inputs."""

from inspect import signature

import numpy as np

TILE = 16


def find_visible(queries, keys, mask, causal, window):
    position = np.arange(queries)[:, None] + (keys - queries)
    key = np.arange(keys)[None, :]
    visible = np.ones((queries, keys), dtype=bool)
    if mask is not None:
        visible = visible & mask
    if causal:
        visible = visible & (key <= position)
    if window is not None:
        left, right = window
        if left >= 0:
            visible = visible & (key >= position - left)
        if right >= 0:
            visible = visible & (key <= position + right)
    return visible


def at_head(array, batch, head):
    return None if array is None else array[batch % array.shape[0], head % array.shape[1]]


def score_tile(query, key, bias, tile, scale, softcap):
    scores = scale * (query @ key[tile].T)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    if bias is not None:
        scores = scores + np.broadcast_to(bias, (len(query), len(key)))[:, tile]
    return scores


def draw_kept(seed, batch, head, shape, dropout, dtype):
    if not dropout:
        return np.ones(shape, dtype)
    drawn = np.random.default_rng([seed, batch, head]).random(shape)
    return (drawn >= dropout).astype(dtype) / (1 - dropout)


def masked_product(weights, visible, value):
    return np.where(visible[:, :, None], weights[:, :, None] * value[None], 0).sum(1)


def attention(
    query,
    key,
    value,
    mask=None,
    bias=None,
    causal=False,
    window=None,
    scale=None,
    softcap=None,
    sinks=None,
    dropout=0.0,
    seed=0,
):
    batch, heads, queries, head_dim = query.shape
    keys, group = key.shape[2], heads // key.shape[1]
    scale = query.dtype.type(1 / np.sqrt(head_dim) if scale is None else scale)
    output = np.zeros((batch, heads, queries, value.shape[3]), query.dtype)
    lse = np.full((batch, heads, queries), -np.inf, query.dtype)
    for b, h in np.ndindex(batch, heads):
        visible = find_visible(queries, keys, at_head(mask, b, h), causal, window)
        kept = draw_kept(seed, b, h, (queries, keys), dropout, query.dtype)
        highest, total = np.full(queries, -np.inf, query.dtype), np.zeros(queries, query.dtype)
        if sinks is not None:
            highest, total = np.full(queries, sinks[h], query.dtype), np.ones(queries, query.dtype)
        summed = np.zeros((queries, value.shape[3]), query.dtype)
        for first in range(0, keys, TILE):
            tile = slice(first, min(first + TILE, keys))
            scores = score_tile(query[b, h], key[b, h // group], at_head(bias, b, h), tile, scale, softcap)
            scores = np.where(visible[:, tile], scores, -np.inf)
            higher = np.maximum(highest, scores.max(1))
            safe = np.where(np.isfinite(higher), higher, 0)
            factor = np.exp(highest - safe)
            exponentials = np.exp(scores - safe[:, None])
            total = total * factor + exponentials.sum(1)
            summed = summed * factor[:, None] + masked_product(
                exponentials * kept[:, tile], visible[:, tile], value[b, h // group, tile]
            )
            highest = higher
        seen = visible.any(1)
        output[b, h] = np.where(seen[:, None], summed / np.where(seen, total, 1)[:, None], 0)
        lse[b, h] = np.where(seen, highest + np.log(np.where(seen, total, 1)), -np.inf)
    return output, lse


def attention_backward(upstream, *inputs, **terms):
    arguments = signature(attention).bind(*inputs, **terms)
    arguments.apply_defaults()
    query, key, value, mask, bias, causal, window, scale, softcap, sinks, dropout, seed = arguments.args
    output, lse = attention(*arguments.args)
    batch, heads, queries, head_dim = query.shape
    keys, group = key.shape[2], heads // key.shape[1]
    scale = query.dtype.type(1 / np.sqrt(head_dim) if scale is None else scale)
    of_query, of_key, of_value = np.zeros_like(query), np.zeros_like(key), np.zeros_like(value)
    of_bias = None if bias is None else np.zeros(bias.shape, query.dtype)
    of_sinks = None if sinks is None else np.zeros(heads, query.dtype)
    for b, h in np.ndindex(batch, heads):
        visible = find_visible(queries, keys, at_head(mask, b, h), causal, window)
        kept = draw_kept(seed, b, h, (queries, keys), dropout, query.dtype)
        seen, g = visible.any(1), h // group
        finite_lse = np.where(seen, lse[b, h], 0)
        row = (upstream[b, h] * output[b, h]).sum(1)
        for first in range(0, keys, TILE):
            tile = slice(first, min(first + TILE, keys))
            read = visible[:, tile].any(0)[:, None]
            k, v = np.where(read, key[b, g, tile], 0), np.where(read, value[b, g, tile], 0)
            padded = np.where(visible.any(0)[:, None], key[b, g], 0)
            scores = score_tile(query[b, h], padded, at_head(bias, b, h), tile, scale, softcap)
            weights = np.where(visible[:, tile], np.exp(np.where(visible[:, tile], scores, 0) - finite_lse[:, None]), 0)
            of_value[b, g, tile] += (weights * kept[:, tile]).T @ upstream[b, h]
            of_weights = kept[:, tile] * (upstream[b, h] @ v.T)
            of_scores = weights * (of_weights - row[:, None])
            if bias is not None:
                place = of_bias[b % bias.shape[0], h % bias.shape[1]]
                if place.shape[0] == 1:
                    place[:, tile] += of_scores.sum(0, keepdims=True)
                else:
                    place[:, tile] += of_scores
            if softcap is not None:
                of_scores = of_scores * (1 - np.tanh(scale * (query[b, h] @ k.T) / softcap) ** 2)
            of_query[b, h] += scale * (of_scores @ k)
            of_key[b, g, tile] += scale * (of_scores.T @ query[b, h])
        if sinks is not None:
            of_sinks[h] -= (np.exp(sinks[h] - finite_lse) * row * seen).sum()
    return {"query": of_query, "key": of_key, "value": of_value, "bias": of_bias, "sinks": of_sinks}
