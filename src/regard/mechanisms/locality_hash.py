"""Locality-sensitive hashing by angles: tokens in similar directions fall into one bucket.

    h(x) = argmax([x R; -x R])        R (head_dim, buckets / 2) random

Andoni et al. 2015, "Practical and optimal LSH for angular distance"; Kitaev et al. 2020 (Reformer), section 2. Many
buckets are a product of factors b_1 b_2 .., each with an R of its own: h = h_1 + b_1 (h_2 + b_2 (..)).

An element of R is a sum of 12 random integers of 16 bits, minus its mean: nearly normal, and, since it is an integer
below 2^20, the same in every float dtype and on every machine. It is a pure function of (seed, head, round, factor,
column, row) by splitmix64, so rounds and columns do not depend on how many there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.mechanisms.clean_tokens import fill_zeros, has_norm_below, is_false
from regard.mechanisms.splitmix64 import shift_right, splitmix64

_MEAN = 12 * (2**16 - 1) // 2
_MAX_FACTOR = 128
"""Buckets from which two factors are drawn: the cost of a hash is proportional to their sum, not to their product."""
_LARGEST_INPUT = 2.0**60
"""Tokens with a larger norm are scaled down, so that no product overflows in float32."""


def draw_rotations(
    *, seed: int, heads: int, head_dim: int, rounds: int, factors: Sequence[int]
) -> Float[Tensor, "heads rounds head_dim columns"]:
    """Draw the matrices R of all factors, side by side, in float32: half as many columns as the sum of the factors."""
    head, number, row = (torch.arange(size, device="cpu") for size in (heads, rounds, head_dim))
    key = splitmix64(splitmix64(torch.tensor(seed, device="cpu")) + head)[:, None]
    key = splitmix64(key + number)[..., None]
    key = splitmix64(key + torch.arange(len(factors), device="cpu"))
    if not factors:
        return torch.zeros(heads, rounds, head_dim, 0, device="cpu")
    columns = [
        splitmix64(key[..., at, None] + torch.arange(size // 2, device="cpu")) for at, size in enumerate(factors)
    ]
    key = splitmix64(torch.cat(columns, dim=-1)[:, :, None] + row[:, None])
    total = torch.full_like(key, -_MEAN)
    for word in range(3):
        drawn = splitmix64(key + word)
        for bits in (0, 16, 32, 48):
            total += shift_right(drawn, bits) & 0xFFFF if bits else drawn & 0xFFFF
    return total.float()


def split_buckets(buckets: int) -> tuple[int, ...]:
    """Split a power of two into factors: itself up to 128, else two; none for 1."""
    if buckets <= _MAX_FACTOR:
        return () if buckets == 1 else (buckets,)
    bits = buckets.bit_length() - 1
    return (2 ** (bits // 2), 2 ** (bits - bits // 2))


def hash_tokens(
    tokens: Float[Tensor, "batch heads length head_dim"],
    rotations: Float[Tensor, "heads rounds head_dim columns"],
    factors: Sequence[int],
) -> Int[Tensor, "batch heads length rounds"]:
    """Compute the bucket of each token in each round. Tokens with NaN or infinity get bucket 0."""
    tokens = tokens.detach()
    usual = has_norm_below(tokens, _LARGEST_INPUT)
    if not is_false(~usual):
        tokens = fill_zeros(tokens, ~tokens.isfinite().all(-1))
        tokens = torch.where(usual[..., None], tokens, tokens * _LARGEST_INPUT**-1)
    rotations = rotations.to(tokens)
    rounds = []
    for number in range(rotations.shape[1]):
        products = tokens @ rotations[:, number]
        bucket = torch.zeros(tokens.shape[:3], dtype=torch.long, device=tokens.device)
        first, step = 0, 1
        for factor in factors:
            part = products[..., first : first + factor // 2]
            place = part.abs().argmax(-1, keepdim=True)
            negative = part.gather(-1, place)[..., 0] < 0
            bucket = bucket + step * (place[..., 0] + negative * (factor // 2))
            first, step = first + factor // 2, step * factor
        rounds.append(bucket)
    return torch.stack(rounds, dim=-1)


def count_buckets(factors: Sequence[int]) -> int:
    """The number of buckets of a product of factors; 1 without factors."""
    return math.prod(factors)
