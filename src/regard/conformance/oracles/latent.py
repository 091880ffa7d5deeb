"""Multi-head latent attention (DeepSeek-AI 2024, section 2.1), token by token, in its expanded form.

    c_j = norm(W_D x_j)         r_j = R_j W_R x_j
    k_hj = [W_K^h c_j; r_j]     v_hj = W_V^h c_j        q_hi = [W_Q^h y_i; R_i W_QR^h y_i]
    o_hi = sum over visible j of softmax_j(q_hi . k_hj / sqrt(size of q_hi)) v_hj
    output_i = W_O [o_1i; ..; o_Hi]

y_i is x_i, or norm(W_QD x_i). norm is RMSNorm with a weight; R_i rotates adjacent pairs by i base^(-2 p / rotary_dim).

Shapes: tokens (batch, length, width); matrices (rows, columns) as in W x; per head (heads, rows, columns); allowed
(bool) broadcasts to (batch, length, length).
"""

from typing import NamedTuple, final

import numpy as np


@final
class Weights(NamedTuple):
    """The matrices; ``query_down`` and ``query_norm`` are None without a latent of queries."""

    latent_down: np.ndarray  # (latent_dim, width): W_D
    rotary_key: np.ndarray  # (rotary_dim, width): W_R
    latent_norm: np.ndarray  # (latent_dim,)
    key: np.ndarray  # (heads, head_dim, latent_dim): W_K
    value: np.ndarray  # (heads, value_dim, latent_dim): W_V
    query: np.ndarray  # (heads, head_dim, query size): W_Q
    rotary_query: np.ndarray  # (heads, rotary_dim, query size): W_QR
    output: np.ndarray  # (width, heads * value_dim): W_O
    query_down: np.ndarray | None = None  # (query_latent_dim, width): W_QD
    query_norm: np.ndarray | None = None


def norm(vector: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
    """Divide by the root mean square, and apply the weight."""
    return vector / np.sqrt(np.mean(vector**2) + epsilon) * weight


def rotate(vector: np.ndarray, place: int, base: float = 10000.0) -> np.ndarray:
    """Rotate each pair of adjacent components."""
    rotated = np.empty_like(vector)
    for pair in range(vector.size // 2):
        angle = place * base ** (-2 * pair / vector.size)
        first, second = vector[2 * pair], vector[2 * pair + 1]
        rotated[2 * pair] = first * np.cos(angle) - second * np.sin(angle)
        rotated[2 * pair + 1] = first * np.sin(angle) + second * np.cos(angle)
    return rotated


def attention(tokens: np.ndarray, weights: Weights, allowed: np.ndarray, epsilon: float = 1e-6) -> np.ndarray:
    """Return the output (batch, length, width)."""
    batch, length, _ = tokens.shape
    heads, value_dim = weights.value.shape[:2]
    allowed = np.broadcast_to(allowed, (batch, length, length))
    output = np.zeros((batch, length, weights.output.shape[0]))
    for entry in range(batch):
        latents = [norm(weights.latent_down @ x, weights.latent_norm, epsilon) for x in tokens[entry]]
        rotary_keys = [rotate(weights.rotary_key @ x, place) for place, x in enumerate(tokens[entry])]
        for i in range(length):
            y = tokens[entry, i]
            if weights.query_down is not None and weights.query_norm is not None:
                y = norm(weights.query_down @ y, weights.query_norm, epsilon)
            indices = np.flatnonzero(allowed[entry, i])
            parts = np.zeros((heads, value_dim))
            for head in range(heads if indices.size else 0):
                query = np.concatenate([weights.query[head] @ y, rotate(weights.rotary_query[head] @ y, i)])
                keys = [np.concatenate([weights.key[head] @ latents[j], rotary_keys[j]]) for j in indices]
                scores = np.array([query @ key for key in keys]) / np.sqrt(query.size)
                share = np.exp(scores - scores.max())
                share /= share.sum()
                parts[head] = sum(share[n] * (weights.value[head] @ latents[j]) for n, j in enumerate(indices))
            output[entry, i] = weights.output @ parts.reshape(-1)
    return output
