"""``BucketRequest``: attention of tokens that share a bucket in any of several hash rounds.

    o_i = sum_j w_ij v_j,    w_i = softmax_j(scale * q_i . k_j)

over the keys j that may be attended to and share a bucket with query i in any round; each counts once, however many
rounds they share. ``except_self`` leaves out the pairs of a token and itself. Without a key the output is 0. With
``key`` None, each key is the query of its token divided by the root of its mean square: q / sqrt(mean(q^2) + 10^-6).

With ``chunk``, each round sorts the tokens by bucket and cuts them into chunks of that many, and a query attends to its
chunk and to the one before it: within the round, or, for the first chunk of a round, the last one of the round before,
cyclically. A key counts as often as it is met. Tokens without a bucket in any round are hidden, and sorted behind all
others; chunks of hidden tokens alone are not counted, so their number has no influence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.contract import Frame


@final
@dataclass(frozen=True)
class BucketRequest:
    """Checked arguments, in float32 or float64.

    ``query_buckets`` and ``key_buckets`` are bucket numbers below ``buckets``, -1 for a key that no query may attend
    to. ``high`` bounds key - query, counted in indices; None: no bound. ``chunk`` needs as many queries as keys, and so
    does a ``key`` that is None.
    """

    query: Float[Tensor, "batch heads queries head_dim"]
    key: Float[Tensor, "batch heads keys head_dim"] | None
    value: Float[Tensor, "batch heads keys value_dim"]
    query_buckets: Int[Tensor, "batch heads queries rounds"]
    key_buckets: Int[Tensor, "batch heads keys rounds"]
    buckets: int
    high: int | None = None
    except_self: bool = False
    chunk: int | None = None
    scale: float = 1.0
    dropout: float = 0.0

    @property
    def frame(self) -> Frame:
        """The numbers of queries and keys, and their alignment."""
        return Frame(self.query.shape[2], self.value.shape[2])

    @property
    def device(self) -> torch.device:
        """Device of query, key and value."""
        return self.query.device

    def describe(self) -> str:
        """The request in one line, for messages."""
        rounds = self.key_buckets.shape[3]
        chunk = "no chunks" if self.chunk is None else f"chunks of {self.chunk}"
        return (
            f"query {tuple(self.query.shape)} {self.query.dtype} on {self.device}, value {tuple(self.value.shape)}, "
            f"{rounds} rounds of {self.buckets} buckets, {chunk}, dropout {self.dropout:g}"
        )


@final
class BucketResult(NamedTuple):
    """The output, and which queries have no key."""

    output: Float[Tensor, "batch heads queries value_dim"]
    empty: Bool[Tensor, "batch heads queries"]
