"""The words every part shares: where queries stand among keys, and what an observation holds.

Shapes used everywhere:
    query   (batch, heads, queries, head_dim)
    key     (batch, key_heads, keys, head_dim)        heads is a multiple of key_heads
    value   (batch, key_heads, keys, value_dim)
    weights (batch, heads, queries, keys)             a row sums to 1, or is all 0 where nothing may be seen
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.arrays import Array
from regard.errors import LARGEST_LENGTH, check_count


def check_length(name: str, length: object, *, least: int = 0, most: int = LARGEST_LENGTH) -> None:
    """Raise OptionError unless a number of tokens is an integer from ``least`` to ``most``, or a symbol of a trace."""
    if type(length) is int and least <= length <= most:  # which is nearly always so, and quick to see
        return
    if not isinstance(length, torch.SymInt) and not torch._C._is_tracing():  # where lengths are tensors
        check_count(name, length, least=least, most=most)


@final
@dataclass(frozen=True)
class Frame:
    """How many queries look at how many keys, and where they stand.

    Queries stand at the end of the keys: query ``i`` has position ``i + keys - queries``, so the last query
    stands on the last key. With as many queries as keys this is the usual square; with a cache, where a few
    new queries look at many keys, it is what decoding needs.
    """

    queries: int
    keys: int

    @property
    def offset(self) -> int:
        """Position of query 0 among the keys; negative where there are more queries than keys."""
        return self.keys - self.queries

    def query_positions(self, rows: Int[Tensor, " rows"]) -> Int[Tensor, " rows"]:
        """Positions of the queries with the indices ``rows``."""
        return rows + self.offset

    def all_rows(self, device: torch.device | str | None = None) -> Int[Tensor, " queries"]:
        """The index of every query."""
        return torch.arange(self.queries, device=device)


@final
@dataclass(frozen=True)
class Observation(Generic[Array]):
    """What a mechanism looked at, in memory linear in the number of queries and keys.

    output       (batch, heads, queries, value_dim)  what attention gives
    lse          (batch, heads, queries)             log of the sum of exp(score); -inf where nothing may be seen; None
                                                     where the mechanism has no scores
    entropy      (batch, heads, queries)             of the weights, in nats; 0 where nothing may be seen; None where
                                                     the weights of a query are no distribution
    received     (batch, heads, keys)                each key's weight summed over the queries
    top_keys     (batch, heads, queries, top)        the keys of the largest weights, largest first; -1: no more keys
    top_weights  (batch, heads, queries, top)        their weights; 0 where top_keys is -1
    rows         (batch, heads, rows, keys)          exact weights of the asked query rows; None if none were asked
    """

    output: Float[Array, "batch heads queries value_dim"]
    lse: Float[Array, "batch heads queries"] | None
    entropy: Float[Array, "batch heads queries"] | None
    received: Float[Array, "batch heads keys"]
    top_keys: Int[Array, "batch heads queries top"]
    top_weights: Float[Array, "batch heads queries top"]
    rows: Float[Array, "batch heads rows keys"] | None = None
