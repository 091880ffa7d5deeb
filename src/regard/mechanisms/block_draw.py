"""Key blocks for each block of queries: its window, and others at random, the same on every machine.

Random numbers are a pure function of (seed, head, query block, place) by splitmix64 (Steele, Lea and Flood 2014), with
integers only, so every machine and every process draws the same blocks. Blocks are drawn without replacement from those
that are neither in the window nor global.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from regard.mechanisms.locality_hash import shift_right, splitmix64

_NONE = 2**62
"""Stands for no block; sorts behind every block."""


def draw_blocks(
    *, heads: int, blocks: int, count: int, window: int, global_blocks: Sequence[int], causal: bool, seed: int
) -> Int[Tensor, "heads blocks count"]:
    """Draw ``count`` different key blocks for each head and query block; -1 where there are no more.

    If ``causal``, they lie before the query block, so draws do not depend on the number of blocks.
    """
    rows = torch.arange(blocks, device="cpu")
    limit = rows + 1 if causal else torch.full_like(rows, blocks)
    of_all = torch.tensor(list(global_blocks), dtype=torch.long, device="cpu").expand(blocks, -1)
    taken = torch.cat([_window(blocks, window), of_all], dim=1)
    taken = _without_repetitions(taken.masked_fill((taken < 0) | (taken >= limit[:, None]), _NONE))
    free = limit - (taken != _NONE).sum(1)
    key = splitmix64(splitmix64(torch.tensor(seed, device="cpu")) + torch.arange(heads, device="cpu")[:, None])
    key, taken = splitmix64(key + rows), taken.expand(heads, -1, -1)
    drawn = [torch.zeros(heads, blocks, 0, dtype=torch.long, device="cpu")]
    for place in range(count):
        left = free - place
        chosen = (
            shift_right(splitmix64(key + place), 32) * left.clamp(min=0) >> 32
        )  # its rank among the blocks that are left
        for column in range(taken.shape[2]):
            chosen = chosen + (chosen >= taken[..., column])
        drawn.append(chosen.masked_fill(left <= 0, -1)[..., None])
        taken = torch.cat([taken, chosen.masked_fill(left <= 0, _NONE)[..., None]], dim=2).sort(dim=2).values
    return torch.cat(drawn, dim=2)


def list_blocks(drawn: Int[Tensor, "heads blocks count"], *, window: int) -> Int[Tensor, "heads blocks listed"]:
    """List the key blocks of each query block, each once: the window around it, and ``drawn``; filled up with -1."""
    heads, blocks, _ = drawn.shape
    found = torch.cat([_window(blocks, window).expand(heads, -1, -1), drawn], dim=2)
    found = _without_repetitions(found.masked_fill((found < 0) | (found >= blocks), _NONE))
    return found.masked_fill(found == _NONE, -1)


def _window(blocks: int, window: int) -> Int[Tensor, "blocks window"]:
    """The ``window`` blocks around each block, those beyond the ends included."""
    return torch.arange(blocks, device="cpu")[:, None] + torch.arange(window, device="cpu") - window // 2


def _without_repetitions(found: Int[Tensor, "*rows listed"]) -> Int[Tensor, "*rows listed"]:
    """Sort along the last dimension, and replace repeated blocks by ``_NONE``."""
    found = found.sort(dim=-1).values
    repeated = torch.nn.functional.pad(found[..., 1:] == found[..., :-1], (1, 0))
    return found.masked_fill(repeated, _NONE).sort(dim=-1).values
