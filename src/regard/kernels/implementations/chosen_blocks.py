"""Causal attention to the own block and to chosen earlier blocks: over the queries of each block, or under a mask.

A mechanism that chooses blocks of keys for each query (``mechanisms.moba``, ``mechanisms.nsa``) is a request of this
operation. Keys are divided into blocks from the first one on.

    native       the tile kernels of exact attention, over the queries that chose a block, gathered into tiles
    masked       exact attention under a dense mask, some rows at a time
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.kernels.implementation import Implementation
from regard.kernels.implementations.gathered_keys import attend_under_masks, request_unsupported_reason
from regard.kernels.operators import chosen_blocks_op
from regard.kernels.operators.block_plan import TILE
from regard.kernels.operators.kernel_arguments import draw_seed
from regard.kernels.request import Request
from regard.kernels.results import accumulation_dtype
from regard.kernels.tracing import is_eager

_MIN_QUERIES = 64
"""Queries from which "auto" gathers them: for a few, one row of a mask is shorter than a plan."""


@final
@dataclass(frozen=True)
class ChosenBlocksRequest:
    """One call: ``request`` has no mask and no bias, and dropout of weights as attention has.

    Args:
        request: query (batch, heads, queries, head_dim), key and value (batch, key_heads, keys, ..), and the scale.
        chosen: (batch, heads, queries, blocks), True for complete blocks before the own block of the query.
        block: number of keys in a block.
        attend: computes exact attention, for "masked".
        stop: (batch,), the number of keys of each batch entry that are not hidden; None is all. Queries behind have the
            block of the last of these keys as their own.
    """

    request: Request
    chosen: Bool[Tensor, "batch heads queries blocks"]
    block: int
    attend: Callable[[Request], Tensor]
    stop: Int[Tensor, " batch"] | None = None

    def allowed(self, rows: Int[Tensor, " rows"]) -> Bool[Tensor, "batch heads rows keys"]:
        """Return the keys that some queries attend to."""
        frame, device = self.request.frame, self.request.device
        key = torch.arange(frame.keys, device=device)
        last = (rows + frame.offset).expand(self.request.query.shape[0], -1)
        if self.stop is not None:
            last = torch.minimum(last, self.stop.to(device)[:, None] - 1)
        last = last[:, None, :, None]
        columns = (key // self.block).expand(*self.chosen.shape[:2], len(rows), -1)
        chosen = self.chosen[:, :, rows].gather(3, columns)
        return (chosen | (key // self.block == last // self.block)) & (key <= last)

    def describe(self) -> str:
        """The request in one line, for messages."""
        return f"{self.request.describe()}, blocks of {self.block}"


def _refuses(request: ChosenBlocksRequest) -> str | None:
    """Refuse other devices, dtypes and transforms, and blocks that are not whole tiles."""
    reason = request_unsupported_reason(request.request, request.chosen)
    if reason is None and request.block % TILE:
        return f"native takes blocks of a multiple of {TILE} tokens"
    return reason


def _auto_skips(request: ChosenBlocksRequest) -> str | None:
    call = request.request
    if is_eager(call.query) and call.frame.queries < _MIN_QUERIES:
        return f"with fewer than {_MIN_QUERIES} queries, a mask takes less time than gathering them"
    return None


def _native(request: ChosenBlocksRequest) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute it with the tile kernels; half precision in float32, rounded once."""
    call = request.request
    dtype = accumulation_dtype(call.query.dtype)
    query, key, value = (part.to(dtype) for part in (call.query, call.key, call.value))
    stop = None if request.stop is None else request.stop.expand(query.shape[0]).contiguous()
    scale, dropout = call.terms.scale, call.terms.dropout
    output = chosen_blocks_op.chosen_blocks(
        query, key, value, request.chosen, stop, request.block, scale, dropout, draw_seed(dropout)
    )
    return output.to(call.query.dtype)


def _masked(request: ChosenBlocksRequest) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute it by exact attention, some rows at a time."""
    return attend_under_masks(request.request, request.allowed, request.chosen.shape[1], request.attend)


NATIVE = Implementation(
    "native", _native, _refuses, _auto_skips, why_chosen="regard's own kernels, over the queries of each block"
)
MASKED = Implementation("masked", _masked, why_chosen="takes any block and any device")
