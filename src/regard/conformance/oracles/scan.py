"""The scan family, token by token: linear attention, decays, and the delta rule.

    S_t = S_(t-1) diag(decay_t) + v_t k_t^T                                     without beta
    S_t = S_(t-1) diag(decay_t) (I - beta_t k_t k_t^T) + beta_t v_t k_t^T       with beta
    o_t = scale S_t q_t

S (value_dim x head_dim) is the state, as the papers write it: Yang et al. 2025, "Gated delta networks", equation 10,
with one decay a token and head; Kimi Linear 2025, equation 1, with one a channel of the key. The decays come first.

Shapes: query, key (batch, heads, length, head_dim), value (batch, heads, length, value_dim), log_decay (batch, heads,
length, 1 or head_dim), beta (batch, heads, length), state (batch, heads, head_dim, value_dim): the transpose of S.
"""

import numpy as np


def scan(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    log_decay: np.ndarray | None = None,
    beta: np.ndarray | None = None,
    state: np.ndarray | None = None,
    scale: float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the output and the final state."""
    batch, heads, length, head_dim = query.shape
    value_dim = value.shape[3]
    inputs = [part for part in (query, key, value, log_decay, beta, state) if part is not None]
    output = np.zeros((batch, heads, length, value_dim), np.result_type(*inputs))
    final = np.zeros((batch, heads, head_dim, value_dim), output.dtype)
    for b in range(batch):
        for h in range(heads):
            matrix = (
                np.zeros((value_dim, head_dim), output.dtype) if state is None else state[b, h].T.astype(output.dtype)
            )
            for t in range(length):
                k, v = key[b, h, t], value[b, h, t]
                if log_decay is not None:
                    matrix = matrix @ np.diag(np.broadcast_to(np.exp(log_decay[b, h, t]), head_dim))
                if beta is None:
                    matrix = matrix + np.outer(v, k)
                else:
                    matrix = matrix @ (np.eye(head_dim) - beta[b, h, t] * np.outer(k, k)) + beta[b, h, t] * np.outer(
                        v, k
                    )
                output[b, h, t] = scale * (matrix @ query[b, h, t])
            final[b, h] = matrix.T
    return output, final
