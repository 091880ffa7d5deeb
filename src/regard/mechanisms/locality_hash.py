"""Locality-sensitive hashing by angles: tokens in similar directions fall into one bucket.

    h(x) = argmax([x R; -x R])        R (head_dim, buckets / 2) random

Andoni et al. 2015, "Practical and optimal LSH for angular distance"; Kitaev et al. 2020 (Reformer), section 2. Many
buckets are a product of factors b_1 b_2 .., each with an R of its own: h = h_1 + b_1 (h_2 + b_2 (..)).

An element of R is a sum of 12 random integers of 16 bits, minus its mean: nearly normal, and, since it is an integer
below 2^20, the same in every float dtype and on every machine. It is a pure function of (seed, head, round, factor,
column, row) by splitmix64, so rounds and columns do not depend on how many there are.

Two directions may be nearly equal, and then the rounding of products would decide. So x R is defined as the sum in
float64 of the products x_k R_kc, each rounded before it is added, k ascending; of equal absolute values the first is
chosen. Products of float32 numbers are exact in float64, so buckets are the same on every processor, with any
instruction set, number of threads and implementation. On a CPU a kernel finds them by float32 products with a bound of
their error, and computes the sums of few columns, one token in hundreds (``kernels.operators.token_hash_op``).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.kernels.operators.token_hash_op import MAX_COLUMNS, find_buckets
from regard.kernels.support import unsupported_reason
from regard.mechanisms.clean_tokens import is_false

_MEAN = 12 * (2**16 - 1) // 2
_LARGEST_INPUT = 2.0**60
"""Tokens with a larger number are scaled down, by a power of two, so that no sum overflows in float64."""


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


def hash_tokens(
    tokens: Float[Tensor, "batch heads length head_dim"],
    rotations: Float[Tensor, "heads rounds head_dim columns"],
    factors: Sequence[int],
) -> Int[Tensor, "batch heads length rounds"]:
    """Compute the bucket of each token in each round. Tokens with NaN or infinity get bucket 0."""
    tokens = tokens.detach()
    if tokens.dtype == torch.float32 and rotations.shape[3] <= MAX_COLUMNS and unsupported_reason(tokens) is None:
        return find_buckets(tokens, rotations.to(tokens), factors)
    return hash_in_torch(tokens, rotations, factors)


def hash_in_torch(
    tokens: Float[Tensor, "batch heads length head_dim"],
    rotations: Float[Tensor, "heads rounds head_dim columns"],
    factors: Sequence[int],
) -> Int[Tensor, "batch heads length rounds"]:
    """Compute what ``hash_tokens`` does, on any device, by the sums that define the buckets."""
    tokens = tokens.detach().double()
    rotations = rotations.to(tokens)
    usual = tokens.abs() < _LARGEST_INPUT
    if not is_false(~usual):
        finite, usual = tokens.isfinite().all(-1, keepdim=True), usual.all(-1, keepdim=True)
        tokens = torch.where(usual, tokens, tokens * _LARGEST_INPUT**-1).masked_fill(~finite, 0.0)
    rounds = []
    for number in range(rotations.shape[1]):
        sums = _sum_in_order(tokens, rotations[:, number])
        bucket = torch.zeros(tokens.shape[:3], dtype=torch.long, device=tokens.device)
        first, step = 0, 1
        for factor in factors:
            part = sums[..., first : first + factor // 2]
            place = part.abs().argmax(-1, keepdim=True)
            negative = part.gather(-1, place)[..., 0] < 0
            bucket = bucket + step * (place[..., 0] + negative * (factor // 2))
            first, step = first + factor // 2, step * factor
        rounds.append(bucket)
    return torch.stack(rounds, dim=-1)


def _sum_in_order(
    tokens: Float[Tensor, "batch heads length head_dim"], rotation: Float[Tensor, "heads head_dim columns"]
) -> Float[Tensor, "batch heads length columns"]:
    """Multiply tokens by a rotation, adding products in the order of rows: a product of matrices has no fixed order."""
    sums = tokens.new_zeros(*tokens.shape[:3], rotation.shape[2])
    for row in range(rotation.shape[1]):
        sums = sums + tokens[..., row, None] * rotation[:, None, row]
    return sums


def splitmix64(number: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Mix 64-bit integers to random ones, the same on every machine (Steele, Lea and Flood 2014).

    Sums and products wrap around; constants are written as signed numbers.
    """
    number = number + (0x9E3779B97F4A7C15 - 2**64)
    number = (number ^ shift_right(number, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    number = (number ^ shift_right(number, 27)) * (0x94D049BB133111EB - 2**64)
    return number ^ shift_right(number, 31)


def shift_right(number: Int[Tensor, "..."], bits: int) -> Int[Tensor, "..."]:
    """Shift to the right, as an unsigned number."""
    return (number >> bits) & (2 ** (64 - bits) - 1)
