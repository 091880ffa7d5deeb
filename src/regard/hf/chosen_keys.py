"""The keys that each query of a sparse model has chosen, or the blocks of keys.

    indices        (batch, queries, chosen), of all keys          DeepSeek-V3.2 and its kin
    block_indices  (batch, groups, queries, chosen), of all blocks of the layer's size; -1 is none        MiniMax-M3

A lightning indexer scores all keys, and a query attends to those with the highest scores, or to the blocks with the
highest score of a key, for each group of heads that share keys and values. With "eager" such a model hides the other
keys in its mask; with other implementations it passes the indices. Here they become the same mask. A query with fewer
visible keys than it chooses has chosen hidden ones too; they stay hidden. DeepSeek-AI 2025, "DeepSeek-V3.2: pushing the
frontier of open large language models", section 2.1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import DtypeError, RefusedError, ShapeError, short_repr
from regard.tensors import has_values


def hide_other_keys(attention_mask: Tensor | None, indices: Any, query: Tensor, keys: int) -> Tensor:
    """The mask (batch, #heads, queries, keys) that hides what ``attention_mask`` does, and all keys not chosen.

    ``query`` is (batch, heads, queries, head_dim). Raises RefusedError for a call without a mask, DtypeError or
    ShapeError for indices that do not fit.
    """
    mask = _require_mask(attention_mask)
    _check_indices(indices, query, keys)
    chosen = indices.new_zeros((*indices.shape[:2], keys), dtype=torch.bool)
    return intersect(mask, chosen.scatter(-1, indices.long(), True)[:, None])


def hide_other_blocks(
    attention_mask: Tensor | None, block_indices: Any, module: nn.Module, query: Tensor, keys: int
) -> Tensor:
    """The mask (batch, heads, queries, keys) that hides what ``attention_mask`` does, and all blocks not chosen.

    ``module.indexer.block_size`` is the number of keys in a block. Raises as ``hide_other_keys``, and RefusedError for
    a layer that does not say the size.
    """
    mask = _require_mask(attention_mask)
    size = getattr(getattr(module, "indexer", None), "block_size", None)
    if not isinstance(size, int) or size < 1:
        raise RefusedError(
            "the size of the blocks of keys is not known",
            expected="a layer whose indexer has a block_size, as in MiniMax-M3",
            got=f"a {type(module).__name__} with block_indices",
            do='use attn_implementation="eager" for this model',
        )
    blocks = -(-keys // size)
    _check_block_indices(block_indices, query, blocks)
    # Indices of -1 are written to one more block, which is left out.
    chosen = block_indices.new_zeros((*block_indices.shape[:3], blocks + 1), dtype=torch.bool)
    chosen = chosen.scatter(-1, block_indices.long() % (blocks + 1), True)[..., :blocks]
    chosen = chosen.repeat_interleave(size, dim=-1)[..., :keys]
    return intersect(mask, chosen.repeat_interleave(query.shape[1] // chosen.shape[1], dim=1))


def _require_mask(attention_mask: Tensor | None) -> Tensor:
    if attention_mask is None:
        raise RefusedError(
            "a sparse layer was called without a mask",
            expected="an attention_mask, which the indexer of the model reads too",
            got="indices of chosen keys alone",
            do="pass the mask that the model makes for its layers",
        )
    return attention_mask


def intersect(mask: Tensor, chosen: Tensor) -> Tensor:
    """The mask, bool or additive, that hides what ``mask`` does and what is not ``chosen``."""
    return mask & chosen if mask.dtype == torch.bool else mask.masked_fill(~chosen, -torch.inf)


def _check_block_indices(indices: Any, query: Tensor, blocks: int) -> None:
    _check_integers(indices, "(batch, groups, queries, chosen)", "pass the numbers of the chosen blocks")
    batch, heads, queries, _ = query.shape
    fits = indices.dim() == 4 and (indices.shape[0], indices.shape[2]) == (batch, queries)
    if not fits or indices.shape[1] == 0 or heads % indices.shape[1]:
        raise ShapeError(
            "indices of chosen blocks do not fit the queries",
            expected=f"({batch}, groups, {queries}, chosen), with groups a divisor of {heads}",
            got=str(tuple(indices.shape)),
            do="choose blocks for each query and each group of heads that share keys and values",
        )
    _check_range(indices, -1, blocks - 1, "blocks")


def _check_indices(indices: Any, query: Tensor, keys: int) -> None:
    _check_integers(indices, "(batch, queries, chosen)", "pass the numbers of the chosen keys")
    if indices.dim() != 3 or tuple(indices.shape[:2]) != (query.shape[0], query.shape[2]):
        raise ShapeError(
            "indices of chosen keys do not fit the queries",
            expected=f"({query.shape[0]}, {query.shape[2]}, chosen)",
            got=str(tuple(indices.shape)),
            do="choose keys for each query, the same for all heads",
        )
    _check_range(indices, 0, keys - 1, "keys")


def _check_integers(indices: Any, shape: str, do: str) -> None:
    if not isinstance(indices, Tensor) or indices.is_floating_point() or indices.dtype == torch.bool:
        raise DtypeError(
            "indices have a form whose meaning is not known",
            expected=f"a tensor of integers {shape}",
            got=short_repr(indices),
            do=do,
        )


def _check_range(indices: Tensor, lowest: int, highest: int, of: str) -> None:
    if not has_values(indices) or not indices.numel():
        return
    smallest, largest = (int(bound) for bound in indices.aminmax())
    if smallest < lowest or largest > highest:
        raise ShapeError(
            f"indices are not those of {of}",
            expected=f"numbers from {lowest} to {highest}",
            got=f"{smallest} to {largest}",
            do=f"choose among the {of} of the call, those in the cache included",
        )
