"""Two tokens of two numbers each: attention small enough to check with a pencil.

    attention(Q, K, V) = softmax(Q K^T / sqrt(d)) V          (Vaswani 2017, equation 1)

Run it:  python examples/two_vectors.py
"""

import math

import torch

import regard

# One row per token, so every matrix is (length, head_dim) = (2, 2).
QUERY = torch.tensor([[1.0, 2.0], [3.0, 4.0]])  # what each token looks for
KEY = torch.tensor([[2.0, 3.0], [4.0, 5.0]])  # what each token offers
VALUE = torch.tensor([[0.1, 0.2], [0.3, 0.4]])  # what each token says


def scores_of(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """How well each query fits each key: row i, column j is query i . key j."""
    return query @ key.T


def weights_of(scores: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Each row scaled by 1 / sqrt(head_dim), then turned into shares that add up to 1."""
    return torch.softmax(scores / math.sqrt(head_dim), dim=-1)


def context_of(weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Each token's new vector: all values, mixed by its row of weights."""
    return weights @ value


def with_regard(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and context in one call; regard takes (batch, heads, length, head_dim), so two 1s are added."""
    seen = regard.observe(query[None, None], key[None, None], value[None, None], rows=[0, 1])
    return seen.rows[0, 0], seen.output[0, 0]


def main() -> None:
    scores = scores_of(QUERY, KEY)
    weights = weights_of(scores, head_dim=2)
    context = context_of(weights, VALUE)
    print("1. Scores, Q K^T. The first is 1 * 2 + 2 * 3 = 8.")
    print(scores)
    print("\n2. Weights, softmax(scores / sqrt(2)). Both tokens look almost only at the second.")
    print(weights)
    print("\n3. Context, weights V. Both rows end up close to the second value, [0.3, 0.4].")
    print(context)

    weights_again, context_again = with_regard(QUERY, KEY, VALUE)
    difference = max((weights - weights_again).abs().max(), (context - context_again).abs().max())
    print(f"\nregard.observe(query, key, value) says the same; the largest difference is {difference:.0e}.")


if __name__ == "__main__":
    main()
