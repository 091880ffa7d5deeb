"""Zeros in place of tokens that must not be summed, without a copy where there are none.

Mechanisms that sum over tokens before they know the queries replace hidden and non-finite tokens by 0, since 0 * NaN is
NaN, and mark the outputs of the queries that may see a non-finite one. Eagerly on a CPU the usual case, in which there
is nothing to replace, costs one pass over the flags.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.kernels.same_layout import copy_if_overlapping, fill_where
from regard.tensors import has_values

MAX_NORM = {torch.float32: 2.0**40, torch.float64: 2.0**300}
"""Tokens with a larger norm are handled like non-finite ones: products of three such elements would overflow."""


def has_norm_below(
    tokens: Float[Tensor, "batch heads length size"], largest: float
) -> Bool[Tensor, "batch heads length"]:
    """True for tokens whose norm is below ``largest``, and so for none with NaN."""
    return torch.linalg.vector_norm(tokens.detach(), dim=-1) < largest


def is_finite(tokens: Float[Tensor, "batch heads length size"]) -> Bool[Tensor, "batch heads length"]:
    """True for tokens whose sum is a finite number: for none with NaN or infinity, and for all but the largest others.

    One pass over the numbers, where ``isfinite`` makes several, which take as long as attention itself.
    """
    return tokens.detach().sum(-1).isfinite()


def fill_zeros(
    tokens: Float[Tensor, "batch heads length size"], where: Bool[Tensor, "#batch #heads #length"] | None
) -> Float[Tensor, "batch heads length size"]:
    """Replace the tokens ``where`` True by 0; None is nowhere. See ``fill_tokens``."""
    return fill_tokens(tokens, where, 0.0)


def fill_nan(
    output: Float[Tensor, "batch heads length size"], where: Bool[Tensor, "#batch #heads #length"]
) -> Float[Tensor, "batch heads length size"]:
    """Replace the rows ``where`` True by NaN; they have no gradients. See ``fill_tokens``."""
    return fill_tokens(output, where, torch.nan)


def fill_tokens(
    tokens: Float[Tensor, "batch heads length size"], where: Bool[Tensor, "#batch #heads #length"] | None, number: float
) -> Float[Tensor, "batch heads length size"]:
    """Replace all numbers of the tokens ``where`` True by ``number``; None is nowhere. See ``fill_numbers``."""
    return tokens if where is None else fill_numbers(tokens, where[..., None], number)


def fill_numbers(
    tokens: Float[Tensor, "batch heads length size"], where: Bool[Tensor, "#batch #heads #length #size"], number: float
) -> Float[Tensor, "batch heads length size"]:
    """Replace the numbers ``where`` True by ``number``.

    The result has the strides and the alignment of ``tokens`` whether any is replaced or not, and so has the gradient:
    torch rounds sums and products of another layout differently, and then a hidden NaN would change bits of other rows.
    """
    if not (tokens.is_cpu and has_values(tokens) and has_values(where)):
        return tokens.masked_fill(where, number)  # always, so that the layout does not depend on values
    tokens = copy_if_overlapping(tokens)
    return fill_where(tokens, where, number) if bool(where.any()) else tokens


def is_false(flags: Bool[Tensor, "..."]) -> bool:
    """Whether all flags are known to be False, without waiting for a device."""
    return flags.is_cpu and has_values(flags) and not bool(flags.any())


def mark_heads(
    output: Float[Tensor, "batch heads queries value_dim"],
    empty: Bool[Tensor, "batch heads"],
    broken: Bool[Tensor, "batch heads"],
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Set the outputs of heads to 0 where no key is visible, and else to NaN where a visible token is not finite."""
    return fill_nan(fill_zeros(output, empty[..., None]), (broken & ~empty)[..., None])
