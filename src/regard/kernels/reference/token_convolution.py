"""A convolution of tokens along their length, with one filter for each head and all its channels, in plain torch.

    out_i = base_i + sum_t filter_t value_(i + offset + t - size // 2)          values beyond the ends are 0

It is computed as products of matrices: a block of outputs is a band matrix, which holds the shifted filter in its rows,
times the values that the block reaches, in the block itself and in the next. A grouped convolution of torch computes
the same more slowly.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

_MIN_BLOCK = 32


def convolve_in_torch(
    base: Float[Tensor, "batch heads queries value_dim"],
    filters: Float[Tensor, "heads size"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    offset: int,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Add the convolution of values to ``base``."""
    heads, size = filters.shape
    group, queries = heads // value.shape[1], base.shape[2]
    front, block = size // 2 - offset, max(_MIN_BLOCK, size - 1)
    blocks = -(-queries // block)
    ends = (front, (blocks + 1) * block - front - value.shape[2])
    own, following = _make_bands(filters, block).split(block, dim=2)
    parts = []
    for head in range(heads):  # one after the other: its numbers fit into a cache
        reached = _extend(value[:, head // group], *ends).unflatten(1, (blocks + 1, block))
        mixed = own[head] @ reached[:, :-1] + following[head] @ reached[:, 1:]
        parts.append(base[:, head] + mixed.flatten(1, 2)[:, :queries])
    return torch.stack(parts, dim=2).transpose(1, 2)  # in the layout that a layer merges without a copy


def _extend(value: Float[Tensor, "batch keys size"], front: int, behind: int) -> Float[Tensor, "batch longer size"]:
    """Extend the values by zeros at both ends, or cut them where a number is negative, in one copy."""
    value = value[:, max(0, -front) : value.shape[1] - max(0, -behind)]
    zeros = [value.new_zeros(value.shape[0], max(0, count), value.shape[2]) for count in (front, behind)]
    return torch.cat([zeros[0], value, zeros[1]], dim=1)


def _make_bands(filters: Float[Tensor, "heads size"], block: int) -> Float[Tensor, "heads block two_blocks"]:
    """Make the matrices whose row i holds the filter from column i on."""
    tap = torch.arange(2 * block, device=filters.device) - torch.arange(block, device=filters.device)[:, None]
    size = filters.shape[1]
    inside = (tap >= 0) & (tap < size)
    return filters[:, tap.clamp(min=0, max=size - 1)].masked_fill(~inside, 0.0)
