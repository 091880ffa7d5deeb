"""Attention from scratch: one head, then several, in plain NumPy, and regard agrees with both.

    attention(Q, K, V) = softmax(Q K^T / sqrt(d)) V                                 (Vaswani 2017, equation 1)
    multi_head(x)      = concat(head_1, ..., head_h) W_O
    head_i             = attention(x W_Q[i], x W_K[i], x W_V[i])                    (the same, section 3.2.2)

Run it:  python examples/from_scratch_numpy.py
"""

import numpy as np
import torch

import regard

LENGTH, WIDTH, HEADS = 5, 12, 3


def softmax(scores: np.ndarray) -> np.ndarray:
    """Rows that add up to 1. Taking off the largest score changes nothing, and exp cannot overflow."""
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def attention(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """One head. (queries, d), (keys, d), (keys, d) to (queries, d)."""
    scores = query @ key.T / np.sqrt(query.shape[-1])
    return softmax(scores) @ value


def multi_head_attention(x: np.ndarray, weights: dict[str, np.ndarray], heads: int) -> np.ndarray:
    """Several heads. (length, width) to (length, width); weights are (width, width), biases (width,)."""
    query = x @ weights["query"] + weights["query bias"]
    key = x @ weights["key"] + weights["key bias"]
    value = x @ weights["value"] + weights["value bias"]
    # Head i owns the i-th block of columns. np.split cuts the width into that many blocks.
    parts = zip(*(np.split(part, heads, axis=-1) for part in (query, key, value)), strict=True)
    joined = np.concatenate([attention(*part) for part in parts], axis=-1)
    return joined @ weights["output"] + weights["output bias"]


def weights_of(layer: regard.MultiHeadAttention) -> dict[str, np.ndarray]:
    """The layer's numbers as NumPy arrays. torch keeps a weight as (out, in), so x W needs its transpose."""
    weights = {}
    for name in ("query", "key", "value", "output"):
        projection = getattr(layer, f"{name}_projection")
        weights[name] = projection.weight.detach().numpy().T
        weights[f"{name} bias"] = projection.bias.detach().numpy()
    return weights


def compare_one_head() -> float:
    """The largest difference between `attention` above and regard.attention."""
    query, key, value = np.random.default_rng(0).normal(size=(3, LENGTH, WIDTH))
    ours = attention(query, key, value)
    # regard takes (batch, heads, length, head_dim).
    theirs = regard.attention(*(torch.tensor(part)[None, None] for part in (query, key, value)))
    return float(np.abs(ours - theirs[0, 0].numpy()).max())


def compare_several_heads() -> float:
    """The largest difference between `multi_head_attention` above and regard.MultiHeadAttention."""
    torch.manual_seed(0)
    layer = regard.MultiHeadAttention(WIDTH, HEADS).double().eval()
    x = np.random.default_rng(1).normal(size=(LENGTH, WIDTH))
    ours = multi_head_attention(x, weights_of(layer), HEADS)
    theirs = layer(torch.tensor(x)[None])
    return float(np.abs(ours - theirs[0].detach().numpy()).max())


def main() -> None:
    print(f"{LENGTH} tokens of width {WIDTH}, in float64. The largest difference from\n")
    print(f"   regard.attention, one head:           {compare_one_head():.0e}")
    print(f"   regard.MultiHeadAttention, {HEADS} heads:   {compare_several_heads():.0e}")
    print("\nfloat64 holds about 16 digits, so these are the same numbers.")


if __name__ == "__main__":
    main()
