"""``Request``: the checked arguments of one call of attention, the input of every implementation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias, final

import torch
from torch import Tensor

from regard.contract import Frame
from regard.kernels.token_projection import TokenProjection
from regard.masks.base import Mask
from regard.positions.base import PairBias

Bias: TypeAlias = Tensor | PairBias


@final
@dataclass(frozen=True)
class Request:
    """Checked arguments: tensors whose shapes (see ``contract``), dtypes and devices fit; ``scale`` is a number.

    ``inputs`` are the extra inputs of a mechanism that declares some, and ``projections`` those that a layer left to
    the mechanism to compute, or to do without; operations of kernels take none. ``softcap`` and ``sinks``, which
    broadcast to (batch, heads, queries, 1), are for softmax over scaled dot products.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask | None
    bias: Bias | None
    scale: float
    dropout: float = 0.0
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    projections: Mapping[str, TokenProjection] = field(default_factory=dict)
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def frame(self) -> Frame:
        """The numbers of queries and keys, and their alignment."""
        return Frame(self.query.shape[2], self.key.shape[2])

    @property
    def group(self) -> int:
        """Number of query heads that share one key head."""
        return self.query.shape[1] // self.key.shape[1]

    @property
    def repeated_key(self) -> Tensor:
        """Keys (batch, heads, keys, head_dim), repeated to one head per query head."""
        return self.key if self.group == 1 else self.key.repeat_interleave(self.group, dim=1)

    @property
    def device(self) -> torch.device:
        """Device of query, key and value."""
        return self.query.device

    def describe(self) -> str:
        """The request in one line, for messages."""
        bias = type(self.bias).__name__ if self.bias is not None else "none"
        others = "" if self.softcap is None else f", softcap {self.softcap:g}"
        others += "" if self.sinks is None else f", sinks {tuple(self.sinks.shape)}"
        return (
            f"query {tuple(self.query.shape)} {self.query.dtype} on {self.device}, "
            f"key {tuple(self.key.shape)}, mask {self.mask!r}, bias {bias}, dropout {self.dropout:g}{others}"
        )

    @property
    def with_rebalanced_scale(self) -> Request:
        """The same request, with query and scale from ``rebalance_scale``.

        float16 has too small a range for the power of two: its tensors become float32, and so does the result.
        """
        if is_scale_in_range(self.scale):
            return self
        query, key, value = self.query, self.key, self.value
        if query.dtype == torch.float16:
            query, key, value = query.float(), key.float(), value.float()
        query, scale = rebalance_scale(query, self.scale)
        return replace(self, query=query, key=key, value=value, scale=scale)


def is_scale_in_range(scale: float) -> bool:
    """Whether a scale is 0, or its absolute value is from 2^-64 to 2^64."""
    return scale == 0 or 2.0**-64 <= abs(scale) <= 2.0**64


def rebalance_scale(query: Tensor, scale: float) -> tuple[Tensor, float]:
    """Move a power of two from the scale to the query, so that the scale is in range; the product stays the same.

    Kernels multiply by the scale in float32, where 3e38 log2 e is infinite and 1e-46 is 0. Multiplying the query by a
    power of two is exact.
    """
    if is_scale_in_range(scale):
        return query, scale
    exponent = math.frexp(scale)[1]
    power = exponent - 64 if exponent > 0 else exponent + 64
    first = power // 2  # the whole power may exceed the range of the query's dtype
    return query * 2.0**first * 2.0 ** (power - first), math.ldexp(scale, -power)
