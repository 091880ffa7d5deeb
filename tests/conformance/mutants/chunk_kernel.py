"""Gated linear attention in chunks: pairs within a chunk, and a state between chunks; decays of each channel."""

from itertools import product

import numpy as np

CHUNK = 16


def find_texts(batch, length, cu_seqlens):
    """Batch entry, first token and end of each text; with cu_seqlens, they are all in one entry."""
    if cu_seqlens is None:
        return [(b, 0, length) for b in range(batch)]
    return [(0, cu_seqlens[n], cu_seqlens[n + 1]) for n in range(len(cu_seqlens) - 1)]


def scan(query, key, value, log_decay, scale, state=None, cu_seqlens=None):
    batch, heads, length, head_dim = query.shape
    output = np.zeros((batch, heads, length, value.shape[3]), query.dtype)
    texts = find_texts(batch, length, cu_seqlens)
    final = np.zeros((len(texts), heads, head_dim, value.shape[3]), query.dtype)
    for (n, (b, start, end)), h in product(enumerate(texts), range(heads)):
        memory = np.zeros_like(final[n, h]) if state is None else state[n, h].copy()
        for first in range(start, end, CHUNK):
            chunk = slice(first, min(first + CHUNK, end))
            q, k, v = query[b, h, chunk], key[b, h, chunk], value[b, h, chunk]
            summed = np.cumsum(log_decay[b, h, chunk], axis=0)
            size = len(summed)
            earlier = np.tri(size, dtype=bool)
            between = np.exp(np.where(earlier[:, :, None], summed[:, None] - summed[None], 0))
            products = np.where(earlier, (q[:, None] * k[None] * between).sum(-1), 0)
            output[b, h, chunk] = scale * (products @ v + (q * np.exp(summed)) @ memory)
            memory = np.exp(summed[-1])[:, None] * memory + (k * np.exp(summed[-1] - summed)).T @ v
        final[n, h] = memory
    return output, final
