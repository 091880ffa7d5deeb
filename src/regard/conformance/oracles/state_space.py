"""Mamba-2 and the gated delta rules, token by token: the papers' recurrences. S (value_dim x head_dim) is the state.

    mamba2         S_t = exp(-rate step_t) S_(t-1) + step_t v_t k_t^T,        step_t = softplus(time_step_t + bias)
    gated_delta    S_t = S_(t-1) diag(alpha_t) (I - beta_t k_t k_t^T) + beta_t v_t k_t^T
    o_i            = scale S_t q_i, t the position of i

Dao and Gu 2024, "Transformers are SSMs", equation 1; Yang et al. 2025, "Gated delta networks", equation 10, with
one alpha a token, and Kimi Linear 2025, equation 1, with one a channel; alpha = exp(-rate softplus(decay + bias)) and
beta = sigmoid(its logit). Queries and keys of the delta rules are divided by sqrt(|x|^2 + 10^-6).

Each row starts from the zero state and runs over the tokens that it may see. The last query has the position of the
last key. Shapes: query (batch, heads, queries, head_dim); key and value (batch, key heads, keys, ...); time_step and
beta (batch, heads, keys, 1); decay (batch, heads, keys, 1 or head_dim); log_rate (heads); bias (heads) or (heads,
head_dim); allowed (bool) broadcasts to (batch, heads, queries, keys).
"""

from collections.abc import Callable

import numpy as np

from regard.conformance.oracles.softmax import key_head, rows, visible_keys

Update = Callable[[int, int, np.ndarray, np.ndarray, int, np.ndarray], np.ndarray]
"""(batch, head, key, value, token, state) -> the next state."""


def mamba2(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    time_step: np.ndarray,
    log_rate: np.ndarray,
    bias: np.ndarray,
    allowed: np.ndarray | None = None,
) -> np.ndarray:
    """Return the output."""

    def update(batch: int, head: int, k: np.ndarray, v: np.ndarray, t: int, state: np.ndarray) -> np.ndarray:
        step = softplus(time_step[batch, head, t, 0] + bias[head])
        return np.exp(-np.exp(log_rate[head]) * step) * state + step * np.outer(v, k)

    return scan(query, key, value, update, allowed, (time_step, log_rate, bias))


def gated_delta(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    beta: np.ndarray,
    decay: np.ndarray,
    log_rate: np.ndarray,
    bias: np.ndarray,
    allowed: np.ndarray | None = None,
) -> np.ndarray:
    """Return the output."""
    size = query.shape[3]

    def update(batch: int, head: int, k: np.ndarray, v: np.ndarray, t: int, state: np.ndarray) -> np.ndarray:
        alpha = np.exp(-np.exp(log_rate[head]) * softplus(decay[batch, head, t] + bias[head]))
        rate = 1 / (1 + np.exp(-beta[batch, head, t, 0]))
        decayed = state @ np.diag(np.broadcast_to(alpha, size))
        return decayed @ (np.eye(size) - rate * np.outer(k, k)) + rate * np.outer(v, k)

    extra = (beta, decay, log_rate, bias)
    return scan(normalize(query), normalize(key), value, update, allowed, extra) / np.sqrt(size)


def scan(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    update: Update,
    allowed: np.ndarray | None,
    extra: tuple[np.ndarray, ...],
) -> np.ndarray:
    """Run the recurrence for each row, over the tokens that it may see."""
    output = np.zeros((*query.shape[:3], value.shape[3]), np.result_type(query, key, value, *extra))
    for batch, head, row, indices in rows(causal_keys(allowed, query, key)):
        group = key_head(head, query.shape[1], key.shape[1])
        state = np.zeros((value.shape[3], key.shape[3]), output.dtype)
        for t in indices:
            state = update(batch, head, key[batch, group, t], value[batch, group, t], t, state)
        output[batch, head, row] = state @ query[batch, head, row]
    return output


def causal_keys(allowed: np.ndarray | None, query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Return which keys a query may see: the allowed ones up to its position, (batch, heads, queries, keys)."""
    queries, keys = query.shape[2], key.shape[2]
    causal = np.arange(keys)[None, :] <= np.arange(queries)[:, None] + keys - queries
    return visible_keys(allowed, (*query.shape[:3], keys)) & causal


def normalize(x: np.ndarray) -> np.ndarray:
    """Divide by sqrt(|x|^2 + 10^-6)."""
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


def softplus(x: np.ndarray) -> np.ndarray:
    """ln(1 + exp(x))."""
    return np.log(1 + np.exp(x))
