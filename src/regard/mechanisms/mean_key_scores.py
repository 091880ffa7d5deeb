"""Scores of blocks of keys by their mean: q_i . mean of k_j over the block.

Lu et al. 2025 (MoBA), equation 6. Only complete blocks are compared, which have the same number of keys, so the sum of
a block's keys ranks as their mean does. A block with a key that is not finite has a score of Inf, and is chosen first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from regard.kernels.request import Request
from regard.mechanisms.chosen_keys import ranking_tokens
from regard.mechanisms.clean_tokens import is_false
from regard.mechanisms.highest_scores import rounded_scores


@final
@dataclass(frozen=True, eq=False)
class BlockSums:
    """Sums of the keys of each block, the same for all queries, and which blocks have a key that is not finite."""

    sums: Float64[Tensor, "batch heads blocks head_dim"]
    broken: Bool[Tensor, "batch heads blocks"]

    @classmethod
    def of(cls, key: Tensor, visible: Bool[Tensor, "#batch #heads keys"] | None, block: int) -> BlockSums:
        """Sum the ``visible`` keys (None: all) (batch, heads, keys, head_dim), which are counted from the first one.

        With all keys, a last block that is not complete has a sum of 0.
        """
        blocks = count_blocks(key.shape[2], block)
        if visible is None:  # sums of float32 cannot overflow, so they are finite if all keys are
            whole = key.shape[2] // block
            sums = key.detach()[:, :, : whole * block].unflatten(2, (whole, block)).sum(3, dtype=torch.float64)
            sums = torch.nn.functional.pad(sums, (0, 0, 0, blocks - whole))  # the last block is never compared
            broken = ~sums.isfinite().all(-1)
            return cls(sums.masked_fill(broken[..., None], 0.0), broken)
        key, finite = ranking_tokens(key)
        visible = visible.expand(key.shape[:3])
        number = ((visible.cumsum(-1) - 1) // block).clamp(min=0)
        sums = key.new_zeros(*key.shape[:2], blocks, key.shape[3])
        sums = sums.scatter_add(2, number[..., None].expand_as(key), key.masked_fill(~visible[..., None], 0.0))
        return cls(sums, _scatter_flags(~finite & visible, number, blocks))

    def score(self, query: Float[Tensor, "batch heads rows head_dim"]) -> Float[Tensor, "batch heads rows blocks"]:
        """Score the blocks for some queries."""
        group = query.shape[1] // self.sums.shape[1]
        sums, broken = (part.repeat_interleave(group, dim=1) for part in (self.sums, self.broken))
        scores = rounded_scores(query.detach().double() @ sums.mT, query.dtype)
        return scores if is_false(broken) else scores.masked_fill(broken[:, :, None], torch.inf)


def score_blocks_of_rows(
    request: Request,
    rows: Int[Tensor, " rows"],
    visible: Bool[Tensor, "#batch #heads rows keys"],
    number: Int[Tensor, "#batch #heads rows keys"],
    block: int,
) -> Float[Tensor, "batch heads rows blocks"]:
    """Score the blocks of each of the queries ``rows``: ``number`` says in which block a visible key is.

    The product with a sum of keys is the sum of the products with them.
    """
    query = request.query[:, :, rows].detach().double()
    key, finite = ranking_tokens(request.repeated_key)
    pairs = (query @ key.mT).masked_fill(~visible, 0.0)
    number = number.expand_as(pairs)
    blocks = count_blocks(request.frame.keys, block)
    sums = pairs.new_zeros(*pairs.shape[:3], blocks).scatter_add(3, number, pairs)
    broken = _scatter_flags(~finite[:, :, None] & visible, number, blocks)
    return rounded_scores(sums, request.query.dtype).masked_fill(broken, torch.inf)


def count_blocks(keys: int, block: int) -> int:
    """Count the blocks of ``keys`` keys; the last one may be shorter."""
    return -(-keys // block)


def _scatter_flags(
    flags: Bool[Tensor, "*sizes keys"], number: Int[Tensor, "*sizes keys"], blocks: int
) -> Bool[Tensor, "*sizes blocks"]:
    """Return which blocks have a key with a flag."""
    counts = torch.zeros(*flags.shape[:-1], blocks, dtype=torch.int32, device=flags.device)
    return counts.scatter_add(-1, number, flags.int()) > 0
