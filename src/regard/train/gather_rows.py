"""The rows of a batch from all processes, with gradients: for losses that compare each row with all others.

    forward     rows of each process (own rows, width) -> (batch, width), in the order of the batch, in every process
    backward    the gradients of all processes are summed, and each takes those of its own rows

Process r has the rows r, r + n, .. of n processes, as ``RankShard`` says.
"""

from __future__ import annotations

from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.kernels.autograd_function import Function
from regard.train.task import RankShard


def gather_rows(rows: Float[Tensor, "own width"], shard: RankShard, batch: int) -> Float[Tensor, "batch width"]:
    """Collect the ``batch`` rows of a batch; ``rows`` are those of this process, ``shard.rows`` of the batch."""
    if shard.of == 1:
        return rows
    gathered: Tensor = _GatherRows.apply(rows, shard, batch)
    return gathered


@final
class _GatherRows(Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, shard: RankShard, batch: int) -> Tensor:
        ctx.shard, ctx.own = shard, len(rows)
        most = -(-batch // shard.of)
        padded = rows.new_zeros(most, rows.shape[1])
        padded[: len(rows)] = rows
        by_rank = [torch.empty_like(padded) for _ in range(shard.of)]
        torch.distributed.all_gather(by_rank, padded)
        return torch.stack(by_rank, dim=1).flatten(0, 1)[:batch]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        summed = gradient.contiguous()
        summed = summed.clone() if summed is gradient else summed
        torch.distributed.all_reduce(summed)
        own: Tensor = ctx.shard.rows(summed)
        return own, None, None
