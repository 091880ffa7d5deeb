"""The other parts of a Transformer encoder: norm, feed-forward, heads, and the encoder block built from them.

    layer norm        Ba 2016, equation 4                 (x - mean) / sqrt(variance + epsilon) * gain + bias
    feed-forward      Vaswani 2017, equation 2            f(x W1 + b1) W2 + b2
    gated             Shazeer 2020, equation 6            (f(x G + g) * (x W1 + b1)) W2 + b2
    multi-head        Vaswani 2017, section 3.2.2         concat(head_1, ..., head_h) W_O
    block, post-norm  Vaswani 2017, section 3.1           x = norm(x + sublayer(x))
    block, pre-norm   Xiong 2020, table 1                 x = x + sublayer(norm(x))

Vectors are rows, x W: a weight is (in, out), the transpose of the weight of torch's Linear. x is (batch, length,
width).
"""

import math
from typing import NamedTuple

import numpy as np

from regard.conformance.oracles.attention import attention


class Linear(NamedTuple):
    """A weight (in, out), and a bias (out,) or None."""

    weight: np.ndarray
    bias: np.ndarray | None = None

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return x @ self.weight if self.bias is None else x @ self.weight + self.bias


class Norm(NamedTuple):
    """Gain and bias (width,), and the epsilon under the root."""

    gain: np.ndarray
    bias: np.ndarray
    epsilon: float = 1e-5


class MultiHead(NamedTuple):
    """The four projections; key and value may have fewer columns, for fewer heads."""

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    heads: int
    key_value_heads: int


class FeedForward(NamedTuple):
    """The two layers, the activation's name, and for gated layers the gate, to which the activation is then applied."""

    inner: Linear
    outer: Linear
    activation: str
    gate: Linear | None = None


def layer_norm(x: np.ndarray, norm: Norm) -> np.ndarray:
    """Normalize each vector to mean 0 and variance 1 (over width, not width - 1), then apply gain and bias."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + norm.epsilon) * norm.gain + norm.bias


def relu(x: np.ndarray) -> np.ndarray:
    """max(x, 0)."""
    return np.maximum(x, 0)


def gelu(x: np.ndarray) -> np.ndarray:
    """x Phi(x), Phi being the normal distribution function (Hendrycks 2016, section 2)."""
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """Hendrycks 2016's approximation by tanh."""
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def silu(x: np.ndarray) -> np.ndarray:
    """x sigmoid(x), also called swish (Ramachandran 2017, with beta 1)."""
    return x / (1 + np.exp(-x))


# "swiglu" and "geglu" are for layers with a gate.
ACTIVATIONS = {
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
    "swiglu": silu,
    "geglu": gelu,
}


def feed_forward(x: np.ndarray, layer: FeedForward) -> np.ndarray:
    """Apply the same two layers to every position."""
    activation = ACTIVATIONS[layer.activation]
    if layer.gate is None:
        return layer.outer(activation(layer.inner(x)))
    return layer.outer(activation(layer.gate(x)) * layer.inner(x))


def multi_head(
    x: np.ndarray,
    layer: MultiHead,
    context: np.ndarray | None = None,
    allowed: np.ndarray | None = None,
    bias: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Output (batch, queries, width) and weights (batch, heads, queries, keys).

    head_i = attention(x W_Q[i], context W_K[i], context W_V[i]): head i owns the i-th block of columns.
    """
    context = x if context is None else context
    query = _split(layer.query(x), layer.heads)
    key = _split(layer.key(context), layer.key_value_heads)
    value = _split(layer.value(context), layer.key_value_heads)
    output, weights = attention(query, key, value, allowed, bias)
    joined = np.concatenate([output[:, head] for head in range(layer.heads)], axis=-1)
    return layer.output(joined), weights


def encoder_block(
    x: np.ndarray,
    multi: MultiHead,
    attention_norm: Norm,
    feed: FeedForward,
    feed_norm: Norm,
    norm_first: bool,
    allowed: np.ndarray | None = None,
) -> np.ndarray:
    """Self-attention, then feed-forward, each with its residual and its norm: (batch, length, width)."""
    if norm_first:
        x = x + multi_head(layer_norm(x, attention_norm), multi, allowed=allowed)[0]
        return x + feed_forward(layer_norm(x, feed_norm), feed)
    x = layer_norm(x + multi_head(x, multi, allowed=allowed)[0], attention_norm)
    return layer_norm(x + feed_forward(x, feed), feed_norm)


def _split(x: np.ndarray, heads: int) -> np.ndarray:
    """(batch, length, heads * head_dim) to (batch, heads, length, head_dim)."""
    return np.stack(np.split(x, heads, axis=-1), axis=1)
