"""Weights as shares of attention, used by statistics, findings and tables.

share_ij = w_ij                       if no weight is below 0
         = |w_ij| / sum_k |w_ik|      if weights are signed: how much a key counts, for or against
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from regard.view.attention_layer import AttentionLayer
from regard.view.reading import Reading

SIGNED_NOTE = "Weights may be below 0 here: a share is a weight's absolute value, divided by the sum of all."


def shares_of(layer: AttentionLayer) -> Float64[np.ndarray, "heads queries keys"]:
    """Compute each key's share of each query's attention; a query that attends to nothing has a row of zeros."""
    weights = layer.weights()
    if not layer.is_signed:
        return weights
    sizes = np.abs(weights)
    total = sizes.sum(axis=-1, keepdims=True)
    return np.divide(sizes, total, out=np.zeros_like(sizes), where=total > 0)


def share_of_sink(reading: Reading) -> float:
    """The share of the token that is kept apart: its mean over all heads, and over the queries after it."""
    assert reading.sink is not None
    shares = [shares_of(layer)[:, reading.sink + 1 :, reading.sink] for layer in reading.layers]
    return float(np.concatenate(shares).mean())
