"""The call of a layer whose attention is written by hand: batch, heads and the rows of each are told from the shapes.

weights  (.., queries, keys)          queries, keys, values  (.., length, size)
call     (batch, heads, queries, keys)                       (batch, heads or groups, length, size)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.recording.calls import LayerCall
from regard.recording.recomputed_call import make_recomputed_call
from regard.recording.recorded_call import make_kept_call
from regard.recording.weight_layout import head_layouts

_HEADS = (
    "num_heads",
    "num_attention_heads",
    "n_heads",
    "n_head",
    "heads",
    "nheads",
    "nhead",
    "num_head",
    "head_count",
    "h",
)
"""Names by which modules know their number of heads."""


def make_written_call(
    weights: Tensor,
    factors: tuple[Tensor, Tensor] | None,
    scores: Tensor | None,
    values: Tensor,
    running: Sequence[nn.Module],
    *,
    is_order_known: bool = True,
) -> LayerCall | None:
    """The call of a layer, without a name; None if queries, keys and values do not fit its weights.

    The weights are kept only if they cannot be computed again from queries and keys. ``scores`` are those of which they
    are the softmax; None if they are no softmax of all scores. ``factors`` are those of the product that they were
    computed from, queries on the left if ``is_order_known``; without factors there are no queries and keys.
    """
    batch, heads = _batch_and_heads(weights, running)
    queries, keys = weights.shape[-2:]
    of_values = next(iter(head_layouts(values.detach(), batch, keys)), None)
    if of_values is None or heads % of_values.shape[1]:
        return None
    kept = weights.reshape(batch, heads, queries, keys)
    if scores is not None:
        scores = scores.reshape(kept.shape)
    largest = None if scores is None else scores.amax(-1)
    if factors is None:
        unknown = torch.full((), torch.nan, dtype=kept.dtype, device=kept.device)
        of_keys = unknown.expand(batch, of_values.shape[1], keys, 1)
        return make_kept_call(unknown.expand(batch, heads, queries, 1), of_keys, of_values, kept, max_score=largest)
    layouts = _fitting_layouts(factors, of_values, kept, is_order_known=is_order_known)
    if scores is not None:
        for layout in layouts:
            call = make_recomputed_call(*layout, scores, kept)
            if call is not None:
                return call
    if not layouts:
        return None
    best = layouts[0] if len(layouts) == 1 else max(layouts, key=partial(_likeness, kept))
    return make_kept_call(*best, kept, max_score=largest)


def _fitting_layouts(
    factors: tuple[Tensor, Tensor], values: Tensor, weights: Tensor, *, is_order_known: bool
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The queries, keys and values (batch, heads, length, size) that may belong to weights."""
    pairs = _fitting_pairs(*factors, weights)
    if not (pairs and is_order_known):
        pairs += _fitting_pairs(*factors[::-1], weights)
    shared = (_share_groups(query, key, values) for query, key in pairs)
    return [layout for layout in shared if layout is not None]


def _fitting_pairs(query: Tensor, key: Tensor, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The queries and keys (batch, heads, length, head_dim) that may belong to weights, in each order of their rows."""
    batch, heads, queries, keys = weights.shape
    return [
        (of_queries, of_keys)
        for of_queries in head_layouts(query, batch, queries)
        if of_queries.shape[1] == heads
        for of_keys in head_layouts(key, batch, keys)
        if heads % of_keys.shape[1] == 0
    ]


def _share_groups(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Queries, keys and values with one number of groups; None if there is none."""
    groups = max(key.shape[1], value.shape[1])
    if groups % key.shape[1] or groups % value.shape[1]:
        return None
    key, value = (
        side.repeat_interleave(groups // side.shape[1], dim=1) if side.shape[1] < groups else side
        for side in (key, value)
    )
    return query, key, value


@torch.no_grad()
def _likeness(weights: Tensor, layout: tuple[Tensor, Tensor, Tensor]) -> float:
    """The correlation of weights with the products of queries and keys in a layout."""
    query, key, _ = layout
    products = (query @ key.repeat_interleave(query.shape[1] // key.shape[1], dim=1).mT).float()
    centred = products - products.mean(-1, keepdim=True)
    return float(functional.cosine_similarity(centred.flatten(), weights.float().flatten(), dim=0))


def _batch_and_heads(weights: Tensor, running: Sequence[nn.Module]) -> tuple[int, int]:
    """The sizes of batch and heads: from the axes of the weights, and from what the running modules say of heads."""
    leading = weights.shape[:-2]
    total = math.prod(leading)
    known_counts = head_counts(running)
    if len(leading) == 2:
        return leading[0], leading[1]
    for axes in range(1, len(leading) + 1):  # windows before the heads, or groups of queries beside them
        heads = math.prod(leading[-axes:])
        if heads in known_counts:
            return total // heads, heads
    if len(leading) == 1:
        heads = next((size for size in known_counts if isinstance(size, int) and size > 0 and total % size == 0), 1)
        return total // heads, heads
    return (total // leading[-1], leading[-1]) if leading else (1, 1)


def head_counts(running: Sequence[nn.Module]) -> set[Any]:
    """Numbers of heads that the running modules state."""
    return {getattr(module, name, None) for module in running for name in _HEADS}
