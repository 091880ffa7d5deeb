"""The gated delta rule token by token, forward and backward, in the dtype of its inputs."""

from itertools import product

import numpy as np


def find_texts(batch, length, cu_seqlens):
    """Batch entry, first token and end of each text; with cu_seqlens, they are all in one entry."""
    if cu_seqlens is None:
        return [(b, 0, length) for b in range(batch)]
    return [(0, cu_seqlens[n], cu_seqlens[n + 1]) for n in range(len(cu_seqlens) - 1)]


def scan(query, key, value, log_decay, beta, scale, state=None, cu_seqlens=None):
    batch, heads, length, head_dim = query.shape
    output = np.zeros((batch, heads, length, value.shape[3]), query.dtype)
    texts = find_texts(batch, length, cu_seqlens)
    final = np.zeros((len(texts), heads, head_dim, value.shape[3]), query.dtype)
    for (n, (b, start, end)), h in product(enumerate(texts), range(heads)):
        memory = np.zeros_like(final[n, h]) if state is None else state[n, h].copy()
        for t in range(start, end):
            memory = np.exp(log_decay[b, h, t]) * memory
            written = beta[b, h, t] * (value[b, h, t] - memory.T @ key[b, h, t])
            memory = memory + np.outer(key[b, h, t], written)
            output[b, h, t] = scale * (memory.T @ query[b, h, t])
        final[n, h] = memory
    return output, final


def scan_backward(upstream, query, key, value, log_decay, beta, scale, state=None, cu_seqlens=None):
    batch, heads, length, head_dim = query.shape
    of_query, of_key, of_value = np.zeros_like(query), np.zeros_like(key), np.zeros_like(value)
    of_decay, of_beta = np.zeros_like(log_decay), np.zeros_like(beta)
    texts = find_texts(batch, length, cu_seqlens)
    of_state = np.zeros((len(texts), heads, head_dim, value.shape[3]), query.dtype)
    for (n, (b, start, end)), h in product(enumerate(texts), range(heads)):
        memory = np.zeros_like(of_state[n, h]) if state is None else state[n, h].copy()
        before, decayed = [], []
        for t in range(start, end):
            before.append(memory)
            memory = np.exp(log_decay[b, h, t]) * memory
            decayed.append(memory)
            missing = value[b, h, t] - memory.T @ key[b, h, t]
            memory = memory + np.outer(key[b, h, t], beta[b, h, t] * missing)
        of_memory = np.zeros_like(memory)
        for t in reversed(range(start, end)):
            q, k, v, rate = query[b, h, t], key[b, h, t], value[b, h, t], beta[b, h, t]
            missing = v - decayed[t - start].T @ k
            after = decayed[t - start] + np.outer(k, rate * missing)
            of_query[b, h, t] = scale * (after @ upstream[b, h, t])
            of_memory = of_memory + scale * np.outer(q, upstream[b, h, t])
            of_written = of_memory.T @ k
            of_key[b, h, t] = of_memory @ (rate * missing)
            of_beta[b, h, t] = of_written @ missing
            of_value[b, h, t] = rate * of_written
            of_key[b, h, t] -= decayed[t - start] @ (rate * of_written)
            of_memory = of_memory - np.outer(k, rate * of_written)
            of_decay[b, h, t] = np.exp(log_decay[b, h, t]) * (of_memory * before[t - start]).sum()
            of_memory = np.exp(log_decay[b, h, t]) * of_memory
        of_state[n, h] = of_memory
    found = {"query": of_query, "key": of_key, "value": of_value, "log_decay": of_decay, "beta": of_beta}
    return {**found, "state": None if state is None else of_state}
