"""regard::highest_keys: the positions of the keys with the highest scores of each query.

``mechanisms.highest_scores`` defines the order: scores are summed in float64 and rounded to float32, and of equal ones
the first key is chosen. The kernel decides nearly all pairs by float32 products with an error bound, and computes the
others in float64 (``csrc/selection/highest_keys.h``), so the choice is the same for any number of threads, instruction
set and length. Memory is linear in the number of keys that are chosen. A choice has no derivative.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int32
from torch import Tensor

from regard.kernels.extension import native
from regard.kernels.operators.kernel_arguments import SCHEMA, KernelArguments
from regard.kernels.operators.operator import Operator


def highest_keys(
    query: Float[Tensor, "batch score_heads queries size"],
    key: Float[Tensor, "batch key_heads keys size"],
    weight: Float[Tensor, "batch score_heads queries 1"] | None,
    first: Bool[Tensor, "batch heads_or_1 1 keys"] | None,
    terms: KernelArguments,
    *,
    count: int,
    heads: int,
    summed: bool,
) -> Int32[Tensor, "batch heads queries count"]:
    """Choose ``count`` keys for each query, ascending, and -1 behind if the mask allows fewer.

    The score is query . key; or, if ``summed``, the sum over the heads of query of weight * relu(query . key), with
    one head of keys, the same for all ``heads`` but for the mask. Keys marked by ``first`` come before all others. Of
    ``terms`` the mask is read. float64 is not supported: its scores would be compared without rounding.
    """
    query, key = query.detach(), key.detach()
    weight = None if weight is None else weight.detach()
    return HIGHEST_KEYS.call((query, key, weight, first), query, key, weight, first, count, heads, summed, *terms)


def _highest_keys(
    query: Tensor,
    key: Tensor,
    weight: Tensor | None,
    first: Tensor | None,
    count: int,
    heads: int,
    summed: bool,
    *terms: Any,
) -> Tensor:
    """Compute regard::highest_keys on a CPU."""
    positions = _empty_positions(query, count, heads)
    if key.shape[2] == 0:
        return positions.fill_(-1)
    if positions.numel():
        options = KernelArguments(*terms).to_kwargs()
        native.highest_keys(query, key, weight, positions, first=first, summed=summed, **options)
    return positions


def _empty_positions(query: Tensor, count: int, heads: int) -> Tensor:
    """Allocate the result."""
    return query.new_empty((query.shape[0], heads, query.shape[2], count), dtype=torch.int32)


HIGHEST_KEYS = Operator(
    "highest_keys",
    "(Tensor query, Tensor key, Tensor? weight, Tensor? first, SymInt count, SymInt heads, bool summed, "
    f"{SCHEMA}) -> Tensor positions",
    compute=_highest_keys,
    fake=lambda query, key, weight, first, count, heads, *_: _empty_positions(query, count, heads),
)
