"""The order of the rows of weights in a product with values, and of heads among the rows of queries and keys.

    weights (batch, heads, queries, keys)     product (batch * heads, queries, keys), (batch, queries * heads, keys), ..

``matmul`` joins leading axes, and ``einsum`` puts axes in the order of its equation and joins those that it can: each
is a permutation of the leading axes and a change of shape. It is found by comparing numbers.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import permutations

import torch
from torch import Tensor


@torch.no_grad()
def find_weights(product: Tensor, weights: Tensor, head_counts: Collection[object]) -> tuple[int, ...] | Tensor | None:
    """Find weights (.., keys) in the left factor of a product, before or after dropout.

    Returns the order of their axes (.., heads, queries, keys); or a tensor, of which the factor was computed; or None
    if the factor is not theirs. The queries are the rows of the product. If heads are among the rows, they are told by
    ``head_counts``; if that does not tell, the axis before the keys are the queries.
    """
    matched = _match_weights(product, weights)
    if matched is not weights:
        return matched
    axes = tuple(range(weights.dim()))
    has_same_numbers = False
    for order in ((*leading, axes[-1]) for leading in permutations(axes[:-1])):  # as they are first
        if has_factor(product, weights.permute(order).reshape(product.shape)):
            has_same_numbers = True
            if weights.shape[order[-2]] == product.shape[-2]:
                return order
    if not has_same_numbers:
        return weights
    if weights.dim() > 2 and weights.shape[-2] in head_counts and weights.shape[-3] not in head_counts:
        return *axes[:-3], axes[-2], axes[-3], axes[-1]
    return axes


def head_layouts(tokens: Tensor, batch: int, length: int) -> list[Tensor]:
    """Tokens (.., size) as (batch, heads, length, size): heads before or among the tokens; none if they do not fit."""
    size = tokens.shape[-1]
    heads, rest = divmod(tokens.numel(), max(batch * length * size, 1))
    if rest or not heads:
        return []
    layouts = [tokens.reshape(batch, heads, length, size)]
    if heads > 1 and tokens.shape[-2] == heads * length:
        layouts.append(tokens.reshape(batch, length, heads, size).transpose(1, 2))
    return layouts


def has_factor(product: Tensor, weights: Tensor) -> bool:
    """Whether a tensor is the weights times one number, as after dropout, or 0."""
    if product.dtype == weights.dtype and product.data_ptr() == weights.data_ptr():
        return True
    kept = (product != 0).flatten()
    scaled, plain = product.flatten()[kept].float().nan_to_num(), weights.flatten()[kept].float().nan_to_num()
    if not scaled.numel():
        return True
    largest = plain.argmax()
    expected = scaled[largest] / plain[largest].clamp(min=1e-30) * plain
    return bool(((scaled - expected).abs() <= 0.02 * expected.abs() + 1e-5).all())


def _match_weights(product: Tensor, weights: Tensor) -> Tensor | None:
    """The weights on the left side of a product, before dropout and in their own shape; None if it has others.

    They are all of them, or those without the first or the last columns, which belong to sinks. The transposed weights
    have columns that are sums over queries, which differ from 1.
    """
    keys, computed = product.shape[-1], weights.shape[-1]
    if product.numel() == 0 or keys > computed or product.numel() * computed != weights.numel() * keys:
        return None
    if keys < computed:
        parts = weights[..., :keys], weights[..., -keys:]
        return next((part for part in parts if has_factor(product.reshape(part.shape), part)), None)
    if product.shape[-1] != product.shape[-2]:
        return weights
    of_rows, of_columns = (product.float().nan_to_num().sum(axis) for axis in (-1, -2))
    if bool((of_rows - 1).abs().mean() <= (of_columns - 1).abs().mean()):
        return weights
    # Weights that were mixed across heads have sums that are equal in a head, but not 1.
    spreads = [(sums - sums.mean(-1, keepdim=True)).abs().mean() for sums in (of_rows, of_columns)]
    return weights if bool(spreads[0] < spreads[1]) else None
