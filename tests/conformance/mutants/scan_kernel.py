"""The gated delta rule token by token, forward and backward, in the dtype of its inputs."""

import numpy as np


def scan(query, key, value, log_decay, beta, scale, state=None):
    batch, heads, length, head_dim = query.shape
    output = np.zeros((batch, heads, length, value.shape[3]), query.dtype)
    final = np.zeros((batch, heads, head_dim, value.shape[3]), query.dtype)
    for b, h in np.ndindex(batch, heads):
        memory = np.zeros_like(final[b, h]) if state is None else state[b, h].copy()
        for t in range(length):
            memory = np.exp(log_decay[b, h, t]) * memory
            written = beta[b, h, t] * (value[b, h, t] - memory.T @ key[b, h, t])
            memory = memory + np.outer(key[b, h, t], written)
            output[b, h, t] = scale * (memory.T @ query[b, h, t])
        final[b, h] = memory
    return output, final


def scan_backward(upstream, query, key, value, log_decay, beta, scale, state=None):
    batch, heads, length, head_dim = query.shape
    of_query, of_key, of_value = np.zeros_like(query), np.zeros_like(key), np.zeros_like(value)
    of_decay, of_beta = np.zeros_like(log_decay), np.zeros_like(beta)
    of_state = np.zeros((batch, heads, head_dim, value.shape[3]), query.dtype)
    for b, h in np.ndindex(batch, heads):
        memory = np.zeros_like(of_state[b, h]) if state is None else state[b, h].copy()
        before, decayed = [], []
        for t in range(length):
            before.append(memory)
            memory = np.exp(log_decay[b, h, t]) * memory
            decayed.append(memory)
            missing = value[b, h, t] - memory.T @ key[b, h, t]
            memory = memory + np.outer(key[b, h, t], beta[b, h, t] * missing)
        of_memory = np.zeros_like(memory)
        for t in reversed(range(length)):
            q, k, v, rate = query[b, h, t], key[b, h, t], value[b, h, t], beta[b, h, t]
            missing = v - decayed[t].T @ k
            after = decayed[t] + np.outer(k, rate * missing)
            of_query[b, h, t] = scale * (after @ upstream[b, h, t])
            of_memory = of_memory + scale * np.outer(q, upstream[b, h, t])
            of_written = of_memory.T @ k
            of_key[b, h, t] = of_memory @ (rate * missing)
            of_beta[b, h, t] = of_written @ missing
            of_value[b, h, t] = rate * of_written
            of_key[b, h, t] -= decayed[t] @ (rate * of_written)
            of_memory = of_memory - np.outer(k, rate * of_written)
            of_decay[b, h, t] = np.exp(log_decay[b, h, t]) * (of_memory * before[t]).sum()
            of_memory = np.exp(log_decay[b, h, t]) * of_memory
        of_state[b, h] = of_memory
    found = {"query": of_query, "key": of_key, "value": of_value, "log_decay": of_decay, "beta": of_beta}
    return {**found, "state": None if state is None else of_state}
