"""Outputs computed a few queries at a time, in memory linear in length, forward and backward.

Only the scores and weights of one tile of queries are in memory. The backward pass computes each tile again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from regard.kernels.reference.attention import ScoreProblem
from regard.kernels.tracing import in_functorch

ComputeRows: TypeAlias = Callable[[Tensor], Tensor]
"""Computes the output (batch, heads, rows, value_dim) of some queries from their indices (rows)."""

_TILE_BYTES = 4 << 20  # one tile of scores: small enough for a CPU's last cache, large enough to keep torch busy


def split_queries(problem: ScoreProblem) -> Sequence[Int[Tensor, " rows"]]:
    """Split the queries into tiles with a bounded number of scores."""
    batch, heads = problem.tokens.query.shape[:2]
    item = problem.tokens.query.element_size()
    height = max(1, _TILE_BYTES // max(1, batch * heads * problem.frame.keys * item))
    pieces: Sequence[Tensor] = problem.frame.all_rows(problem.tokens.query.device).split(height)
    return pieces


def compute_in_tiles(
    problem: ScoreProblem, compute_rows: ComputeRows, *, is_random: bool = False
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute the output of all queries tile by tile.

    In training each tile is computed again in the backward pass, with the same random numbers if ``is_random``. Inside
    torch.func, which has no such recomputation, the weights of all tiles stay in memory.
    """
    tiles = split_queries(problem)
    if len(tiles) == 1:
        return compute_rows(tiles[0])
    if in_functorch() or not torch.is_grad_enabled():
        return torch.cat([compute_rows(rows) for rows in tiles], dim=2)
    parts = [checkpoint(compute_rows, rows, use_reentrant=False, preserve_rng_state=is_random) for rows in tiles]
    return torch.cat(parts, dim=2)
