"""Isolation of NaN and Inf: they affect only queries that may attend to them.

A weight of 0 does not stop a NaN: 0 * NaN is NaN, in the output and again in the gradients. So tokens that
contain NaN or Inf are replaced by zeros before any product, and exactly the rows of queries that may attend to
them are set to NaN:

    output[i] = NaN  if query i contains one, or any key or value j with mask[i, j] does,
                     or if an allowed score is NaN or too large for the dtype

Such a row is excluded from the backward pass; all other rows are computed, bit for bit, as if the token were zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@final
@dataclass(frozen=True)
class IsolatedTokens:
    """Tensors of a request with non-finite tokens replaced by zeros, and flags of the replaced tokens."""

    query: Float[Tensor, "batch heads queries head_dim"]
    key: Float[Tensor, "batch heads keys head_dim"]
    value: Float[Tensor, "batch heads keys value_dim"]
    bad_query: Bool[Tensor, "batch heads queries"]
    bad_key: Bool[Tensor, "batch heads keys"]

    def bad_rows(
        self, allowed: Bool[Tensor, "#batch #heads #rows #keys"] | None, rows: Tensor
    ) -> Bool[Tensor, "batch heads rows"]:
        """True for queries of ``rows`` that have an allowed key, and are or may attend to a non-finite token."""
        bad_query, bad_key = self.bad_query[:, :, rows], self.bad_key[:, :, None, :]
        if allowed is None:
            return bad_query | bad_key.any(-1)
        return (bad_query & allowed.any(-1)) | (bad_key & allowed).any(-1)


def isolate_nonfinite(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch heads keys head_dim"],
    value: Float[Tensor, "batch heads keys value_dim"],
) -> IsolatedTokens:
    """Replace non-finite tokens by zeros; a token that is non-finite in key or value is replaced in both."""
    bad_query = ~query.isfinite().all(-1)
    bad_key = ~(key.isfinite().all(-1) & value.isfinite().all(-1))
    return IsolatedTokens(
        query=query.masked_fill(bad_query[..., None], 0.0),
        key=key.masked_fill(bad_key[..., None], 0.0),
        value=value.masked_fill(bad_key[..., None], 0.0),
        bad_query=bad_query,
        bad_key=bad_key,
    )


@final
class MaskedWeights(NamedTuple):
    """Weights, and the rows in which they are not a distribution."""

    weights: Float[Tensor, "batch heads rows keys"]
    empty_rows: Bool[Tensor, "batch heads rows"]
    """Rows without an allowed key: their weights are 0."""
    nonfinite_rows: Bool[Tensor, "batch heads rows"]
    """Rows in which an allowed score, or the sink, is NaN or overflowed: their weights are meaningless."""
    sink_weight: Float[Tensor, "batch heads rows"] | None = None
    """The weight of the sink of each row, if there are sinks; 0 in the rows above."""


def masked_softmax(
    scores: Float[Tensor, "batch heads rows keys"],
    allowed: Bool[Tensor, "#batch #heads #rows #keys"] | None,
    sinks: Float[Tensor, "#batch #heads #rows 1"] | None = None,
) -> MaskedWeights:
    """Compute softmax over the allowed keys, and a sink if there is one. Forbidden keys get 0, and a row without
    allowed keys is all 0.
    """
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    if scores.shape[-1] == 0:
        no_rows = scores.new_zeros(scores.shape[:-1], dtype=torch.bool)
        sink_weight = None if sinks is None else scores.new_zeros(scores.shape[:-1])
        return MaskedWeights(scores, empty_rows=~no_rows, nonfinite_rows=no_rows, sink_weight=sink_weight)
    highest = scores.detach().amax(-1, keepdim=True)
    empty = highest == -torch.inf
    broken = ~(highest < torch.inf)
    if sinks is not None:
        column = sinks.to(scores).expand_as(highest)
        broken = broken | (~(column.detach() < torch.inf) & ~empty)
        scores = torch.cat((scores, column), dim=-1)
    # A row of only -inf would be 0/0, and one with NaN would propagate it: both are computed on zeros instead.
    weights = scores.masked_fill(empty | broken, 0.0).softmax(-1)
    sink_weight = None
    if sinks is not None:
        weights, sink_weight = weights[..., :-1], weights[..., -1].masked_fill((empty | broken).squeeze(-1), 0.0)
    # Forbidden weights are 0 already; setting them stops gradients, which a huge value can make infinite.
    weights = weights.masked_fill(empty if allowed is None else empty | ~allowed, 0.0)
    return MaskedWeights(weights, empty.squeeze(-1), broken.squeeze(-1), sink_weight)
