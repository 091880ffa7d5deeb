"""Attention whose score is a network with one hidden layer, on query and key.

    score(q, k) = v . tanh(a + b)         a made of the query alone, b of the key alone: (inner) numbers each

Bahdanau et al. 2015, appendix A.1.2. Mechanisms differ in how they make a and b. Both are made once a token; a pair
costs ``inner`` times a tanh. Plain torch holds a tensor of queries x keys x inner, the fused kernel none of even
queries x keys.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import RefusedError, check_count, unknown
from regard.kernels import additive
from regard.kernels.library import wide
from regard.kernels.native import out_of_reach
from regard.kernels.request import Bias, Request
from regard.kernels.select import describe
from regard.kernels.terms import terms_of
from regard.masks.base import Mask
from regard.mechanisms.base import ScoredMechanism


class HiddenLayer(ScoredMechanism):
    """softmax(v . tanh(a_i + b_j)) V.

    ``inner`` is the size of the hidden layer; None takes head_dim. ``impl`` is "native" (the fused kernel, on a CPU),
    "reference" (plain torch), or "auto": native where it can. ``observe`` and ``weights`` are plain torch, in tiles.
    """

    implementations: ClassVar[tuple[str, ...]] = ("native", "reference")

    def __init__(self, *, heads: int, head_dim: int, dropout: float, inner: int | None, impl: str) -> None:
        super().__init__(heads=heads, head_dim=head_dim, dropout=dropout)
        inner = head_dim if inner is None else inner
        check_count("inner", inner)
        if impl != "auto" and impl not in self.implementations:
            raise unknown("impl", impl, ["auto", *self.implementations])
        self.inner, self.impl = inner, impl

    @abstractmethod
    def of_query(self, query: Float[Tensor, "batch heads rows head_dim"]) -> Float[Tensor, "batch heads rows inner"]:
        """a, in the dtype of ``query``."""

    @abstractmethod
    def of_key(self, key: Float[Tensor, "batch heads keys head_dim"]) -> Float[Tensor, "batch heads keys inner"]:
        """b, in the dtype of ``key``."""

    @property
    @abstractmethod
    def vector(self) -> Float[Tensor, "heads inner"]:
        """v."""

    @final
    def score(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
    ) -> Float[Tensor, "batch heads rows keys"]:
        """v . tanh(a + b) for every pair; NaN where a or b overflowed.

        Those are kept out of the tanh: at NaN its gradient is NaN, and would be where the mask forbids the pair too.
        """
        of_query, wild_query = _tamed(self.of_query(query))
        of_key, wild_key = _tamed(self.of_key(key))
        hidden = torch.tanh(of_query[:, :, :, None, :] + of_key[:, :, None, :, :])
        scores = (hidden @ self.vector.to(query)[None, :, None, :, None]).squeeze(-1)
        return scores.masked_fill(wild_query | wild_key.transpose(-2, -1), torch.nan)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None = None, *, bias: Bias | None = None
    ) -> Tensor:
        """The output (batch, heads, queries, value_dim), by the chosen implementation."""
        request = self.checked(query, key, value, mask, bias, self.scale)
        if self._is_for_native(request):
            return self._fused(request)
        return super().forward(query, key, value, mask, bias=bias)

    def _is_for_native(self, request: Request) -> bool:
        """Whether the fused kernel is to compute this. Raises RefusedError where it was named and cannot."""
        if self.impl == "reference":
            return False
        reason = out_of_reach(request)
        if reason is not None and self.impl == "native":
            raise RefusedError(
                f"impl 'native' refuses: {reason}",
                expected="a request it can compute exactly",
                got=describe(request),
                do='build the mechanism with impl="auto"',
            )
        return reason is None

    def _fused(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """One call of the kernel; half precision is computed in float32 and rounded once, at the end.

        A token that is not finite is kept out of the projection, where it would make the weights' gradients NaN.
        """
        dtype = wide(request.query.dtype)
        with torch.autocast("cpu", enabled=False):
            key, value = (
                tensor.to(dtype).repeat_interleave(request.group, dim=1) for tensor in (request.key, request.value)
            )
            query, wild_query = _tamed(request.query.to(dtype))
            key, wild_key = _tamed(key)
            of_query = _marked(self.of_query(query), wild_query)
            of_key = _marked(self.of_key(key), wild_key)
            terms = terms_of(replace(request, query=of_query, key=of_key, value=value))
            output = additive.attend(of_query, of_key, self.vector.to(dtype), value, terms)
        return output.to(request.query.dtype)

    def extra_repr(self) -> str:
        """For printing."""
        return f"{super().extra_repr()}, inner={self.inner}, impl={self.impl!r}"


def _tamed(
    tokens: Float[Tensor, "batch heads length size"],
) -> tuple[Float[Tensor, "batch heads length size"], Bool[Tensor, "batch heads length 1"]]:
    """Zeros in place of tokens that hold a NaN or Inf, and which those are."""
    wild = ~(tokens.detach().abs().amax(-1, keepdim=True) < torch.inf)
    return tokens.masked_fill(wild, 0.0), wild


def _marked(
    tokens: Float[Tensor, "batch heads length size"], wild: Bool[Tensor, "batch heads length 1"]
) -> Float[Tensor, "batch heads length size"]:
    """NaN in the wild tokens; by a sum, which costs less than filling them, forward and backward."""
    return tokens + torch.where(wild, torch.nan, 0.0).to(tokens.dtype)
