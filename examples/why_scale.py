"""Why the scores are divided by sqrt(d).

If the numbers in q and k are independent with mean 0 and variance 1, each product q[i] k[i] has mean 0 and
variance 1, so their sum q . k has variance d, and q . k / sqrt(d) has variance 1 whatever d is (Vaswani 2017,
footnote 4).

Without the division the scores grow with d, softmax gives nearly all the weight to one key, and there its
slope is nearly 0: the layer stops learning.

Run it:  python examples/why_scale.py
"""

from typing import NamedTuple

import torch

import regard

KEYS = 16


class Measured(NamedTuple):
    """What random scores and their softmax look like, as means over many queries."""

    variance: float  # of the scores
    heaviest: float  # weight of the key that got most, between 1 / KEYS and 1
    slope: float  # trace of softmax's Jacobian, 1 - sum of squared weights: 0 where nothing can be learned


def random_vectors(head_dim: int, queries: int = 500) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries (queries, 1, 1, head_dim), and KEYS keys for each, (queries, 1, KEYS, head_dim)."""
    generator = torch.Generator().manual_seed(head_dim)
    query = torch.randn(queries, 1, 1, head_dim, generator=generator)
    return query, torch.randn(queries, 1, KEYS, head_dim, generator=generator)


def measure(head_dim: int, scale: float) -> Measured:
    """Scores multiplied by the scale, and the weights that regard makes of them."""
    query, key = random_vectors(head_dim)
    scores = scale * query @ key.transpose(2, 3)
    weights = regard.observe(query, key, key, scale=scale, rows=[0]).rows
    return Measured(
        variance=scores.var().item(),
        heaviest=weights.amax(dim=-1).mean().item(),
        slope=(1 - weights.square().sum(dim=-1)).mean().item(),
    )


def main() -> None:
    print(f"Random queries against {KEYS} random keys: how far the scores spread, how much weight the heaviest")
    print("key takes, and the slope of softmax, by which the layer learns (0: it cannot).\n")
    print("            scores q . k                  scores q . k / sqrt(d)")
    print("    d   variance  heaviest  slope       variance  heaviest  slope")
    for head_dim in (1, 4, 16, 64, 256, 1024):
        plain, scaled = measure(head_dim, 1.0), measure(head_dim, head_dim**-0.5)
        left = f"{plain.variance:8.1f}  {plain.heaviest:8.2f}  {plain.slope:5.2f}"
        right = f"{scaled.variance:8.2f}  {scaled.heaviest:8.2f}  {scaled.slope:5.2f}"
        print(f"{head_dim:5}   {left}       {right}")
    print("\nLeft, the variance is about d, one key takes nearly everything, and the slope vanishes.")
    print("Right, it is 1 whatever d is. So regard.attention scales by 1 / sqrt(d) unless told otherwise.")


if __name__ == "__main__":
    main()
