"""Convolution of the values along the text, one filter for each head and all its channels, as products of matrices.

    out_i = sum_t filter_t v_(p_i + t - size // 2)          p_i: the position of query i among the keys

A block of outputs is a band matrix, which holds the shifted filter in its rows, times the values that the block
reaches, in the block itself and in the next. A grouped convolution of torch computes the same more slowly.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.contract import Frame
from regard.mechanisms.clean_tokens import fill_nan, fill_zeros, is_false, is_finite

_MIN_BLOCK = 32


def add_convolution(
    output: Float[Tensor, "batch heads queries value_dim"],
    filters: Float[Tensor, "heads size"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    visible: Bool[Tensor, "#batch #heads keys"] | None,
    frame: Frame,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Add the convolution of the visible values to an output; values hidden or beyond the ends count as 0.

    The last query has the position of the last key. NaN where a filter reaches a value that is not finite.
    """
    heads, size = filters.shape
    group = heads // value.shape[1]
    bad = ~is_finite(value)
    bad = bad if visible is None else bad & visible
    value = fill_zeros(value, bad if visible is None else bad | ~visible)
    front, block = size // 2 - frame.offset, max(_MIN_BLOCK, size - 1)
    blocks = -(-frame.queries // block)
    ends = (front, (blocks + 1) * block - front - frame.keys)
    own, following = _make_bands(filters, block).split(block, dim=2)
    parts = []
    for head in range(heads):  # one after the other: its numbers fit into a cache
        reached = _extend(value[:, head // group], *ends).unflatten(1, (blocks + 1, block))
        mixed = own[head] @ reached[:, :-1] + following[head] @ reached[:, 1:]
        parts.append(output[:, head] + mixed.flatten(1, 2)[:, : frame.queries])
    output = torch.stack(parts, dim=2).transpose(1, 2)  # in the layout that a layer merges without a copy
    if is_false(bad):
        return output
    before = torch.nn.functional.pad(torch.nn.functional.pad(bad, ends).cumsum(2), (1, 0))
    first = torch.arange(frame.queries, device=bad.device)
    near = (before[..., first + size] > before[..., first]).repeat_interleave(group, dim=1)
    return fill_nan(output, near)


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
