"""The keys that each query of a sparse model has chosen: ``indices`` (batch, queries, chosen), of all keys.

    DeepSeek-V3.2 and its kin: a lightning indexer scores all keys, and a query attends to those with the highest scores

With "eager" such a model hides the other keys in its mask; with any other implementation it passes the indices. Here
they become the same mask. A query with fewer visible keys than it chooses has chosen hidden ones too; they stay hidden.
DeepSeek-AI 2025, "DeepSeek-V3.2: pushing the frontier of open large language models", section 2.1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.errors import DtypeError, RefusedError, ShapeError, short_repr
from regard.tensors import has_values


def hide_other_keys(attention_mask: Tensor | None, indices: Any, query: Tensor, keys: int) -> Tensor:
    """The mask (batch, #heads, queries, keys) that hides what ``attention_mask`` does, and all keys not chosen.

    ``query`` is (batch, heads, queries, head_dim). Raises RefusedError for a call without a mask, DtypeError or
    ShapeError for indices that do not fit.
    """
    if attention_mask is None:
        raise RefusedError(
            "a sparse layer was called without a mask",
            expected="an attention_mask, which the indexer of the model reads too",
            got="indices of chosen keys alone",
            do="pass the mask that the model makes for its layers",
        )
    _check_indices(indices, query, keys)
    chosen = indices.new_zeros((*indices.shape[:2], keys), dtype=torch.bool)
    chosen = chosen.scatter(-1, indices.long(), True)[:, None]
    if attention_mask.dtype == torch.bool:
        return attention_mask & chosen
    return attention_mask.masked_fill(~chosen, -torch.inf)


def _check_indices(indices: Any, query: Tensor, keys: int) -> None:
    if not isinstance(indices, Tensor) or indices.is_floating_point() or indices.dtype == torch.bool:
        raise DtypeError(
            "indices have a form whose meaning is not known",
            expected="a tensor of integers (batch, queries, chosen)",
            got=short_repr(indices),
            do="pass the numbers of the chosen keys",
        )
    if indices.dim() != 3 or tuple(indices.shape[:2]) != (query.shape[0], query.shape[2]):
        raise ShapeError(
            "indices of chosen keys do not fit the queries",
            expected=f"({query.shape[0]}, {query.shape[2]}, chosen)",
            got=str(tuple(indices.shape)),
            do="choose keys for each query, the same for all heads",
        )
    if has_values(indices) and indices.numel() and not (int(indices.amin()) >= 0 and int(indices.amax()) < keys):
        raise ShapeError(
            "indices are not those of keys",
            expected=f"numbers from 0 to {keys - 1}",
            got=f"{int(indices.amin())} to {int(indices.amax())}",
            do="choose among the keys of the call, those in the cache included",
        )
