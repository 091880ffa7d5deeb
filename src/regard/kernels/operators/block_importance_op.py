"""regard::block_importance: the blocks of keys that a query chooses by the weights of compressed attention.

``mechanisms.nsa`` defines the choice by weights in float64. The kernel computes them in float32 with an error bound,
and says for which queries the choice is certain whatever the error is (``csrc/selection/block_importance.h``); the
caller computes the others. A choice has no derivative.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from regard.kernels.extension import native
from regard.kernels.operators.operator import Operator


def choose_blocks(
    query: Float[Tensor, "batch heads queries head_dim"],
    compressed: Float32[Tensor, "batch key_heads compressed head_dim"],
    visible: Int64[Tensor, "batch_or_1 queries"],
    *,
    blocks: int,
    block: int,
    compressed_block: int,
    stride: int,
    count: int,
) -> tuple[Bool[Tensor, "batch key_heads queries blocks"], Bool[Tensor, "batch key_heads queries"]]:
    """Mark ``count`` of the blocks before the own one of each query, and the queries whose choice is certain.

    ``compressed`` are compressed keys times the scale, and ``visible`` the number of keys that each query may see.
    float64 is not supported: its weights would be compared without rounding.
    """
    query, compressed = query.detach(), compressed.detach()
    tensors = (query, compressed, visible)
    return BLOCK_IMPORTANCE.call(tensors, *tensors, blocks, block, compressed_block, stride, count)


def _block_importance(
    query: Tensor,
    compressed: Tensor,
    visible: Tensor,
    blocks: int,
    block: int,
    compressed_block: int,
    stride: int,
    count: int,
) -> tuple[Tensor, Tensor]:
    """Compute regard::block_importance on a CPU."""
    chosen, certain = _empty_results(query, compressed, visible, blocks)
    options = {"block": block, "compressed_block": compressed_block, "stride": stride, "count": count}
    native.block_importance(query, compressed, visible, chosen, certain, **options, threads=torch.get_num_threads())
    return chosen, certain


def _empty_results(
    query: Tensor, compressed: Tensor, visible: Tensor, blocks: int, *options: object
) -> tuple[Tensor, Tensor]:
    """Allocate the results; also the fake kernel for tracing."""
    del visible, options
    shape = (query.shape[0], compressed.shape[1], query.shape[2])
    return query.new_empty((*shape, blocks), dtype=torch.bool), query.new_empty(shape, dtype=torch.bool)


BLOCK_IMPORTANCE = Operator(
    "block_importance",
    "(Tensor query, Tensor compressed, Tensor visible, SymInt blocks, SymInt block, SymInt compressed_block, "
    "SymInt stride, SymInt count) -> (Tensor chosen, Tensor certain)",
    compute=_block_importance,
    fake=_empty_results,
)
