"""Gated linear attention in chunks: pairs within a chunk, and a state between chunks; decays of each channel."""

import numpy as np

CHUNK = 16


def scan(query, key, value, log_decay, scale, state=None):
    batch, heads, length, head_dim = query.shape
    output = np.zeros((batch, heads, length, value.shape[3]), query.dtype)
    final = np.zeros((batch, heads, head_dim, value.shape[3]), query.dtype)
    for b, h in np.ndindex(batch, heads):
        memory = np.zeros_like(final[b, h]) if state is None else state[b, h].copy()
        for first in range(0, length, CHUNK):
            chunk = slice(first, min(first + CHUNK, length))
            q, k, v = query[b, h, chunk], key[b, h, chunk], value[b, h, chunk]
            summed = np.cumsum(log_decay[b, h, chunk], axis=0)
            size = len(summed)
            earlier = np.tri(size, dtype=bool)
            between = np.exp(np.where(earlier[:, :, None], summed[:, None] - summed[None], 0))
            products = np.where(earlier, (q[:, None] * k[None] * between).sum(-1), 0)
            output[b, h, chunk] = scale * (products @ v + (q * np.exp(summed)) @ memory)
            memory = np.exp(summed[-1])[:, None] * memory + (k * np.exp(summed[-1] - summed)).T @ v
        final[b, h] = memory
    return output, final
