"""Exact attention of packed rows, (tokens of all texts, heads, head_dim), in the dtype of its inputs."""

from inspect import signature

import numpy as np

TILE = 16


def find_texts(cu_seqlens_q, cu_seqlens_k):
    for text in range(len(cu_seqlens_q) - 1):
        yield cu_seqlens_q[text], cu_seqlens_q[text + 1], cu_seqlens_k[text], cu_seqlens_k[text + 1]


def find_visible(rows, columns, queries, keys, causal, window_size):
    position = rows[:, None] + (keys - queries)
    visible = np.ones((len(rows), len(columns)), dtype=bool)
    left, right = window_size
    if causal:
        visible = visible & (columns <= position)
    if left >= 0:
        visible = visible & (columns >= position - left)
    if right >= 0:
        visible = visible & (columns <= position + right)
    return visible


def score(query, key, scale, softcap):
    scores = scale * (query @ key.T)
    return scores if softcap is None else softcap * np.tanh(scores / softcap)


def tiles(longest, length):
    for first in range(0, longest, TILE):
        if first < length:
            yield np.arange(first, min(first + TILE, length))


def attention(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    causal=False,
    window_size=(-1, -1),
    softmax_scale=None,
    softcap=None,
    sinks=None,
):
    (total, heads, head_dim), group = q.shape, q.shape[1] // k.shape[1]
    scale = q.dtype.type(1 / np.sqrt(head_dim) if softmax_scale is None else softmax_scale)
    output, lse = np.zeros((total, heads, v.shape[2]), q.dtype), np.full((heads, total), -np.inf, q.dtype)
    for (q_start, q_end, k_start, k_end), h in (
        (text, h) for text in find_texts(cu_seqlens_q, cu_seqlens_k) for h in range(heads)
    ):
        queries, keys, g = q_end - q_start, k_end - k_start, h // group
        for rows in tiles(max_seqlen_q, queries):
            highest, summed = np.full(len(rows), -np.inf, q.dtype), np.zeros((len(rows), v.shape[2]), q.dtype)
            weight = np.zeros(len(rows), q.dtype)
            if sinks is not None:
                highest, weight = np.full(len(rows), sinks[h], q.dtype), np.ones(len(rows), q.dtype)
            seen = np.zeros(len(rows), dtype=bool)
            for columns in tiles(max_seqlen_k, keys):
                visible = find_visible(rows, columns, queries, keys, causal, window_size)
                scores = score(q[q_start + rows, h], k[k_start + columns, g], scale, softcap)
                scores = np.where(visible, scores, -np.inf)
                higher = np.maximum(highest, scores.max(1))
                safe = np.where(np.isfinite(higher), higher, 0)
                factor, exponentials = np.exp(highest - safe), np.exp(scores - safe[:, None])
                weight = weight * factor + exponentials.sum(1)
                summed = summed * factor[:, None] + exponentials @ v[k_start + columns, g]
                seen, highest = seen | visible.any(1), higher
            output[q_start + rows, h] = np.where(seen[:, None], summed / np.where(seen, weight, 1)[:, None], 0)
            lse[h, q_start + rows] = np.where(seen, highest + np.log(np.where(seen, weight, 1)), -np.inf)
    return output, lse


def attention_backward(upstream, *inputs, **terms):
    arguments = signature(attention).bind(*inputs, **terms)
    arguments.apply_defaults()
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, window_size, *rest = arguments.args
    softmax_scale, softcap, sinks = rest
    output, lse = attention(*arguments.args)
    (_, heads, head_dim), group = q.shape, q.shape[1] // k.shape[1]
    scale = q.dtype.type(1 / np.sqrt(head_dim) if softmax_scale is None else softmax_scale)
    of_q, of_k, of_v = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    of_sinks = None if sinks is None else np.zeros(heads, q.dtype)
    for (q_start, q_end, k_start, k_end), h in (
        (text, h) for text in find_texts(cu_seqlens_q, cu_seqlens_k) for h in range(heads)
    ):
        queries, keys, g = q_end - q_start, k_end - k_start, h // group
        for rows in tiles(max_seqlen_q, queries):
            here = q_start + rows
            seen, total = np.isfinite(lse[h, here]), (upstream[here, h] * output[here, h]).sum(1)
            if sinks is not None:
                of_sinks[h] -= (np.exp(sinks[h] - np.where(seen, lse[h, here], 0)) * total * seen).sum()
            for columns in tiles(max_seqlen_k, keys):
                there = k_start + columns
                visible = find_visible(rows, columns, queries, keys, causal, window_size)
                scores = score(q[here, h], k[there, g], scale, softcap)
                weights = np.where(visible, np.exp(np.where(visible, scores - lse[h, here][:, None], 0)), 0)
                of_v[there, g] += weights.T @ upstream[here, h]
                of_scores = weights * (upstream[here, h] @ v[there, g].T - total[:, None])
                if softcap is not None:
                    of_scores = of_scores * (1 - (scores / softcap) ** 2)
                of_q[here, h] += scale * (of_scores @ k[there, g])
                of_k[there, g] += scale * (of_scores.T @ q[here, h])
    return {"q": of_q, "k": of_k, "v": of_v, "sinks": of_sinks}
