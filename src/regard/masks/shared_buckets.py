"""Shared-bucket mask: a query may attend to the keys that share a bucket with it in any hash round.

    query_buckets[batch, head, query, r] == key_buckets[batch, head, key, r]    for any r

Kitaev et al. 2020 (Reformer), section 2. Keys of bucket -1 are hidden from every query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from regard.masks.as_tensor import to_device
from regard.masks.base import Mask, Rule


@final
@dataclass(frozen=True, eq=False, repr=False)
class SharedBuckets(Mask):
    """Shared-bucket mask, with the bucket of each query and key in each round."""

    query_buckets: Int[Tensor, "batch heads queries rounds"]
    key_buckets: Int[Tensor, "batch heads keys rounds"]

    def __post_init__(self) -> None:
        batch, heads = self.key_buckets.shape[:2]
        object.__setattr__(self, "batch", batch if batch != 1 else None)
        object.__setattr__(self, "heads", heads if heads != 1 else None)

    def __repr__(self) -> str:
        return f"shared_buckets({self.key_buckets.shape[3]} rounds)"

    def check_lengths(self, queries: int, keys: int) -> None:
        """Accept the lengths of the buckets, for which the mechanism makes the mask."""
        assert (queries, keys) == (self.query_buckets.shape[2], self.key_buckets.shape[2])

    def mask_mod(self, queries: int, keys: int, *, device: torch.device | str | None = None) -> Rule:
        """Return the rule for these lengths, with its tensors on ``device``."""
        self.check_lengths(queries, keys)
        of_queries, of_keys = (to_device(side, device) for side in (self.query_buckets, self.key_buckets))
        one_entry, one_head = of_keys.shape[0] == 1, of_keys.shape[1] == 1

        def rule(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            entry, at = batch * 0 if one_entry else batch, head * 0 if one_head else head
            allowed = torch.zeros_like(entry + at + query + key, dtype=torch.bool)
            for number in range(of_keys.shape[3]):
                bucket = of_keys[entry, at, key, number]
                allowed = allowed | ((of_queries[entry, at, query, number] == bucket) & (bucket >= 0))
            return allowed

        return rule
