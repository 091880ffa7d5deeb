"""``Request``: the checked arguments of one call of attention, and ``Terms``: its options.

Every implementation takes a request. ``validation.make_request`` makes one of a caller's arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias, final

import torch
from torch import Tensor

from regard.contract import Frame
from regard.kernels.hardware import Hardware, describe_hardware
from regard.kernels.token_projection import TokenProjection
from regard.masks.base import Mask
from regard.positions.base import PairBias

Bias: TypeAlias = Tensor | PairBias

_FEW_QUERIES = 8
_FEW_TOKENS = 128  # the side of a tile on a GPU


@final
class Terms(NamedTuple):
    """The options of exact attention, which change its scores and weights; checked by ``validation.check_terms``.

    score_ij = scale * q_i . k_j, or softcap * tanh(scale * q_i . k_j / softcap), plus bias_ij, where the mask allows

    Args:
        mask: which queries may attend to which keys; None is all to all.
        bias: added to the scores: a tensor that broadcasts to (batch, heads, queries, keys), or a position.
        scale: factor of the dot products.
        softcap: bound of the scaled dot products; None is no bound.
        sinks: logits that broadcast to (batch, heads, queries, 1): exp(sink) is added to the sum of each softmax.
        dropout: probability of setting a weight to 0.

    A new term is a field here, a check in ``check_terms`` and, if the kernels compute it, a field of
    ``KernelArguments``. The schemas of the operators, the arguments of the kernels, the refusals of implementations
    without it and the messages follow. The public functions that take it name it in their signatures.
    """

    mask: Mask | None = None
    bias: Bias | None = None
    scale: float = 1.0
    softcap: float | None = None
    sinks: Tensor | None = None
    dropout: float = 0.0

    def describe(self) -> str:
        """The terms in one line, for messages."""
        bias = type(self.bias).__name__ if self.bias is not None else "none"
        text = f"mask {self.mask!r}, bias {bias}, dropout {self.dropout:g}"
        for name, value in zip(self._fields, self, strict=True):
            if name not in ("mask", "bias", "scale", "dropout") and value is not None:
                text += f", {name} {tuple(value.shape) if isinstance(value, Tensor) else format(value, 'g')}"
        return text


_DEFAULT_TERMS = Terms()
_NOUNS = {"sinks": "attention sinks"}
"""The nouns of terms in messages, if they are not their names."""


def make_term_check(computed: Collection[str]) -> Callable[[Terms], str | None]:
    """Make a function that returns the noun of a term in use that is not among the names ``computed``, else None."""
    others = [
        (name, _NOUNS.get(name, name), Terms._field_defaults[name]) for name in Terms._fields if name not in computed
    ]

    def find_other(terms: Terms) -> str | None:
        for name, noun, default in others:
            value = getattr(terms, name)
            if value is not None and not (isinstance(value, float) and value == default):
                return noun
        return None

    return find_other


@final
@dataclass(frozen=True)
class Request:
    """Checked arguments: tensors whose shapes (see ``contract``), dtypes and devices fit, and the terms.

    ``inputs`` are the extra inputs of a mechanism that declares some, and ``projections`` those that a layer left to
    the mechanism to compute, or to do without; operations of kernels take none. ``hardware`` is the device for which
    an implementation is chosen, if not that of the tensors.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    terms: Terms = _DEFAULT_TERMS
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    projections: Mapping[str, TokenProjection] = field(default_factory=dict)
    hardware: Hardware | None = None

    @property
    def mask(self) -> Mask | None:
        """Which queries may attend to which keys; None is all to all."""
        return self.terms.mask

    @property
    def bias(self) -> Bias | None:
        """The bias of the scores."""
        return self.terms.bias

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
        return repeat_heads(self.key, self.group)

    @property
    def device(self) -> torch.device:
        """Device of query, key and value."""
        return self.query.device

    @property
    def device_type(self) -> str:
        """Type of the device for which an implementation is chosen."""
        return self.query.device.type if self.hardware is None else self.hardware.type

    @property
    def target(self) -> Hardware:
        """The device for which an implementation is chosen."""
        return describe_hardware(self.device) if self.hardware is None else self.hardware

    @property
    def has_few_cells(self) -> bool:
        """Whether a dense mask or the weights take about as little memory as the keys, so that tiles save nothing."""
        queries, keys = self.query.shape[2], self.key.shape[2]
        return queries <= _FEW_QUERIES or max(queries, keys) <= _FEW_TOKENS

    def replace(self, **changes: Any) -> Request:
        """Return the request with other tensors, terms or inputs, by their names."""
        terms = {name: changes.pop(name) for name in Terms._fields if name in changes}
        return replace(self, **changes, terms=self.terms._replace(**terms))

    def describe(self) -> str:
        """The request in one line, for messages."""
        device = self.device if self.hardware is None else self.hardware
        return (
            f"query {tuple(self.query.shape)} {self.query.dtype} on {device}, "
            f"key {tuple(self.key.shape)}, {self.terms.describe()}"
        )

    @property
    def with_rebalanced_scale(self) -> Request:
        """The same request, with query and scale from ``rebalance_scale``.

        float16 has too small a range for the power of two: its tensors become float32, and so does the result.
        """
        if is_scale_in_range(self.terms.scale):
            return self
        query, key, value = self.query, self.key, self.value
        if query.dtype == torch.float16:
            query, key, value = query.float(), key.float(), value.float()
        query, scale = rebalance_scale(query, self.terms.scale)
        return self.replace(query=query, key=key, value=value, scale=scale)


def repeat_heads(tokens: Tensor, group: int) -> Tensor:
    """Repeat key heads (batch, key_heads, ..) to one for each query head, ``group`` for each."""
    return tokens if group == 1 else tokens.repeat_interleave(group, dim=1)


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
