"""Definitions that all parts share: the alignment of queries with keys, and the fields of an observation.

Shapes used everywhere:
    query   (batch, heads, queries, head_dim)
    key     (batch, key_heads, keys, head_dim)        heads is a multiple of key_heads
    value   (batch, key_heads, keys, value_dim)
    weights (batch, heads, queries, keys)             a row sums to 1, or is all 0 where no key may be attended to;
                                                      with a sink, it sums to 1 together with the weight of the sink
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.arguments import explain_arguments
from regard.arrays import Array
from regard.errors import LARGEST_LENGTH, check_count


def check_length(name: str, length: object, *, minimum: int = 0, maximum: int = LARGEST_LENGTH) -> None:
    """Raise OptionError unless ``length`` is an integer from ``minimum`` to ``maximum``, or symbolic in a trace."""
    if type(length) is int and minimum <= length <= maximum:  # the fast path, nearly always taken
        return
    if not isinstance(length, torch.SymInt) and not torch._C._is_tracing():  # torch.jit.trace makes lengths tensors
        check_count(name, length, minimum=minimum, maximum=maximum)


@final
@dataclass(frozen=True)
class Frame:
    """The numbers of queries and keys, and the positions of the queries among the keys.

    Queries are aligned with the end of the keys: query ``i`` has position ``i + keys - queries``, so the last query
    has the position of the last key. With as many queries as keys this is the usual square; with a cache, where a few
    new queries attend to many keys, decoding needs this alignment.
    """

    queries: int
    keys: int

    @property
    def offset(self) -> int:
        """Position of query 0 among the keys; negative if there are more queries than keys."""
        return self.keys - self.queries

    def query_positions(self, rows: Int[Tensor, " rows"]) -> Int[Tensor, " rows"]:
        """Positions of the queries with the indices ``rows``."""
        return rows + self.offset

    def all_rows(self, device: torch.device | str | None = None) -> Int[Tensor, " queries"]:
        """Indices of all queries: 0 to ``queries`` - 1."""
        return torch.arange(self.queries, device=device)


@final
@explain_arguments
@dataclass(frozen=True)
class Observation(Generic[Array]):
    """Attention output and statistics of the weights, in memory linear in the number of queries and keys.

    output       (batch, heads, queries, value_dim)  the output of attention
    lse          (batch, heads, queries)             log of the sum of exp(score); -inf where no key may be attended to;
                                                     None if the mechanism has no scores
    entropy      (batch, heads, queries)             of the weights, in nats; 0 where no key may be attended to; None if
                                                     the weights of a query are not a distribution
    received     (batch, heads, keys)                each key's weight summed over the queries
    top_keys     (batch, heads, queries, top)        the keys of the largest weights, largest first; -1: no more keys
    top_weights  (batch, heads, queries, top)        their weights; 0 where top_keys is -1
    rows         (batch, heads, rows, keys)          exact weights of the requested queries; None if none were requested
    sink_weight  (batch, heads, queries)             the weight of each query's sink; 0 where no key may be attended to;
                                                     None without sinks
    max_score    (batch, heads, queries)             the largest score, with softcap and bias; -inf where no key may be
                                                     attended to; None if the mechanism has no scores. No gradient.

    A sink is one more term of the sum, and so of lse, and one more weight in the entropy: a key's weight is
    exp(score - lse), and the weights of the keys and of the sink are a distribution. received, top_keys, top_weights,
    rows and max_score are about keys alone.
    """

    output: Float[Array, "batch heads queries value_dim"]
    lse: Float[Array, "batch heads queries"] | None
    entropy: Float[Array, "batch heads queries"] | None
    received: Float[Array, "batch heads keys"]
    top_keys: Int[Array, "batch heads queries top"]
    top_weights: Float[Array, "batch heads queries top"]
    rows: Float[Array, "batch heads rows keys"] | None = None
    sink_weight: Float[Array, "batch heads queries"] | None = None
    max_score: Float[Array, "batch heads queries"] | None = None
