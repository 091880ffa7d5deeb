"""A mask for the same tokens in another order, and for some of the heads.

    allowed[batch, h, i, j] = mask[batch, heads[h], order[i], order[j]]

There are as many queries as keys, and both are in the order that ``order`` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from regard.masks.as_tensor import to_device
from regard.masks.base import Mask, Rule
from regard.masks.dense_mask import Keep


@final
@dataclass(frozen=True, eq=False, repr=False)
class Reindexed(Mask):
    """``mask`` for the tokens ``order``; ``of_heads`` selects heads of the mask, None: all."""

    mask: Mask
    order: Int[Tensor, " tokens"]
    of_heads: Int[Tensor, " heads"] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch", self.mask.batch)
        heads = self.mask.heads if self.of_heads is None or self.mask.heads is None else len(self.of_heads)
        object.__setattr__(self, "heads", heads if heads != 1 else None)

    def __repr__(self) -> str:
        return f"reindexed({self.mask!r})"

    def mask_mod(self, queries: int, keys: int, *, device: torch.device | str | None = None) -> Rule:
        """Return the rule for these lengths, with its tensors on ``device``."""
        rule, order = self.mask.mask_mod(queries, keys, device=device), to_device(self.order, device)
        heads = None if self.of_heads is None or self.mask.heads is None else to_device(self.of_heads, device)

        def reindexed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return rule(batch, head if heads is None else heads[head], order[query], order[key])

        return reindexed


def reindex(mask: Mask, order: Int[Tensor, " tokens"], of_heads: Int[Tensor, " heads"] | None = None) -> Mask:
    """Return a mask for tokens and heads in another order; one that hides keys from all queries stays of that form."""
    if mask.depends_on_query:
        return Reindexed(mask, order, of_heads)
    allowed = mask.dense(order.shape[0], order.shape[0], device=order.device)
    allowed = allowed if of_heads is None or allowed.shape[1] == 1 else allowed[:, of_heads]
    return Keep(allowed if allowed.shape[3] == 1 else allowed[..., order])
