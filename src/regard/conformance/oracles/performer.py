"""Performer (Choromanski 2021), pair by pair, with the features of lemma 1 as they are written there.

    weights[i, j] = phi(q_i) . phi(k_j) / sum over visible j' of phi(q_i) . phi(k_j')
    output[i]     = sum over visible j of weights[i, j] value[j]

    softmax kernel   phi_r(x) = exp(w_r . x' - |x'|^2 / 2) / sqrt(features)
    ReLU kernel      phi_r(x) = max(w_r . x', 0) + 0.001                         x' = x / head_dim^(1/4)

Shapes: query (batch, heads, queries, head_dim); key and value (batch, key heads, keys, ...); projection, of rows w_r,
(features, head_dim); allowed (bool) broadcasts to (batch, heads, queries, keys).
"""

from collections.abc import Callable

import numpy as np

from regard.conformance.oracles.softmax import key_head, rows, visible_keys, weighted_sum


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    projection: np.ndarray,
    allowed: np.ndarray | None = None,
    kernel: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the output and the weights; ``kernel`` is ``softmax_features`` or ``relu_features``."""
    features = softmax_features if kernel is None else kernel
    visible = visible_keys(allowed, (*query.shape[:3], key.shape[2]))
    weights = np.zeros(visible.shape, dtype=np.result_type(query, key))
    of_keys = np.zeros((*key.shape[:3], len(projection)), dtype=weights.dtype)
    for place in np.ndindex(key.shape[:3]):
        of_keys[place] = features(key[place], projection)
    for batch, head, row, indices in rows(visible):
        of_query = features(query[batch, head, row], projection)
        products = of_keys[batch, key_head(head, query.shape[1], key.shape[1]), indices] @ of_query
        weights[batch, head, row, indices] = products / products.sum()
    return weighted_sum(weights, value, visible), weights


def softmax_features(x: np.ndarray, projection: np.ndarray) -> np.ndarray:
    """Features whose products are exp(q . k / sqrt(head_dim)) on average."""
    scaled = x / x.size**0.25
    return np.exp(projection @ scaled - (scaled * scaled).sum() / 2) / np.sqrt(len(projection))


def relu_features(x: np.ndarray, projection: np.ndarray) -> np.ndarray:
    """Features of generalised attention; for complex numbers the real part decides."""
    products = projection @ (x / x.size**0.25)
    return np.where(np.real(products) > 0, products, 0) + 1e-3
