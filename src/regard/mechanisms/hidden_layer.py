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

from regard.arguments import explain_arguments
from regard.errors import DtypeError, RefusedError, ShapeError, check_choice, check_size, check_weights
from regard.kernels import additive, scored
from regard.kernels.autocast import without_autocast
from regard.kernels.library import wide
from regard.kernels.native import out_of_reach
from regard.kernels.request import Bias, Request
from regard.kernels.select import describe
from regard.kernels.terms import terms_of
from regard.masks.base import Mask
from regard.mechanisms.base import ScoredMechanism
from regard.mechanisms.steps import Steps
from regard.shapes import check_tokens


@explain_arguments
class HiddenLayer(ScoredMechanism):
    """softmax(v . tanh(a_i + b_j)) V.

    ``inner`` is the size of the hidden layer; None takes head_dim. ``impl`` is "native" (the fused kernel, on a CPU),
    "reference" (plain torch), or "auto": native where it can. ``observe`` and ``weights`` are plain torch, in tiles.
    """

    implementations: ClassVar[tuple[str, ...]] = ("native", "reference")

    def __init__(self, *, heads: int, head_dim: int, dropout: float, inner: int | None, impl: str) -> None:
        super().__init__(heads=heads, head_dim=head_dim, dropout=dropout)
        inner = head_dim if inner is None else inner
        check_size("inner", inner)
        check_weights(heads=heads, inner=inner, head_dim=2 * head_dim)
        check_choice("impl", impl, ("auto", *self.implementations))
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
        """v . tanh(a + b) for every pair; NaN where a or b overflowed."""
        return self._scores(query, self.of_key(key))

    @final
    def prepared(self, key: Float[Tensor, "batch key_heads keys head_dim"]) -> Float[Tensor, "batch heads keys inner"]:
        """b of every key, for calls that look at the same keys one after another: give it to each as ``prepared``.

        In float32 for half precision; NaN where a key is not finite. Raises ShapeError for keys of other sizes.
        """
        check_tokens("key", key, f"(batch, key_heads, keys, {self.head_dim})")
        if key.dim() != 4 or key.shape[3] != self.head_dim or key.shape[1] == 0 or self.heads % key.shape[1]:
            raise ShapeError(
                f"keys do not fit {type(self).__name__}",
                expected=f"(batch, key_heads, keys, {self.head_dim}), {self.heads} heads a multiple of key_heads",
                got=str(tuple(key.shape)),
                do="build the mechanism with the heads and head_dim of the query",
            )
        with without_autocast(key.device):
            key, wild = _tamed(_for_all_heads(key.to(wide(key.dtype)), self.heads // key.shape[1]))
            return _marked(self.of_key(key), wild)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | None = None,
        *,
        bias: Bias | None = None,
        prepared: Tensor | None = None,
    ) -> Tensor:
        """The output (batch, heads, queries, value_dim), by the chosen implementation.

        ``prepared`` is ``self.prepared(key)``, where it was computed before. Raises as ``regard.attention`` does.
        """
        request = self.request(query, key, value, mask, bias)
        self._check_prepared(prepared, request)
        return self._attend(request, prepared)

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """The output, by the chosen implementation."""
        return self._attend(request, None)

    def steps(self, request: Request) -> Steps:
        """The hidden layer's two sides, and its vector."""
        key = self.of_key(request.key_of_all_heads)
        return Steps(self.of_query(request.query), key, request.mask, vector=self.vector)

    def _attend(self, request: Request, prepared: Tensor | None) -> Float[Tensor, "batch heads queries value_dim"]:
        if self._is_for_native(request):
            return self._fused(request, prepared)
        problem = self.problem(request)
        if prepared is not None:
            problem = replace(problem, score=lambda queries, _: self._scores(queries, prepared))
        return scored.attend(problem, dropout=request.dropout, dtype=request.query.dtype)

    def _scores(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        of_key: Float[Tensor, "batch heads keys inner"],
    ) -> Float[Tensor, "batch heads rows keys"]:
        """v . tanh(a + b).

        What overflowed is kept out of the tanh: at NaN its gradient is NaN, and would be where the mask forbids the
        pair too.
        """
        of_query, wild_query = _tamed(self.of_query(query))
        of_key, wild_key = _tamed(of_key)
        hidden = torch.tanh(of_query[:, :, :, None, :] + of_key[:, :, None, :, :])
        scores = (hidden @ self.vector.to(query)[None, :, None, :, None]).squeeze(-1)
        return scores.masked_fill(wild_query | wild_key.transpose(-2, -1), torch.nan)

    def _check_prepared(self, prepared: Tensor | None, request: Request) -> None:
        """Raise ShapeError or DtypeError for what ``prepared`` did not make of these keys."""
        if prepared is None:
            return
        check_tokens("prepared", prepared, "(batch, heads, keys, inner)")
        batch, heads, keys = request.query.shape[0], self.heads, request.key.shape[2]
        if prepared.shape != (batch, heads, keys, self.inner):
            raise ShapeError(
                "prepared keys do not fit",
                expected=f"(batch, heads, keys, inner) = {(batch, heads, keys, self.inner)}",
                got=str(tuple(prepared.shape)),
                do="prepared = mechanism.prepared(key), with the key of this call",
            )
        if prepared.dtype != wide(request.key.dtype):
            raise DtypeError(
                "prepared keys have another dtype",
                expected=f"{wide(request.key.dtype)}, for keys of {request.key.dtype}",
                got=str(prepared.dtype),
                do="prepared = mechanism.prepared(key), with the key of this call",
            )

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

    def _fused(self, request: Request, prepared: Tensor | None) -> Float[Tensor, "batch heads queries value_dim"]:
        """One call of the kernel; half precision is computed in float32 and rounded once, at the end.

        A token that is not finite is kept out of the projection, where it would make the weights' gradients NaN.
        """
        dtype = wide(request.query.dtype)
        with without_autocast(request.device):
            of_key = self.prepared(request.key) if prepared is None else prepared
            value = _for_all_heads(request.value.to(dtype), request.group)
            query, wild_query = _tamed(request.query.to(dtype))
            of_query = _marked(self.of_query(query), wild_query)
            terms = terms_of(replace(request, query=of_query, key=of_key, value=value))
            output = additive.attend(of_query, of_key, self.vector.to(dtype), value, terms)
        return output.to(request.query.dtype)

    def extra_repr(self) -> str:
        """For printing."""
        return f"{super().extra_repr()}, inner={self.inner}, impl={self.impl!r}"


def _for_all_heads(
    tokens: Float[Tensor, "batch key_heads length size"], group: int
) -> Float[Tensor, "batch heads length size"]:
    """One head of keys or values for each head of queries."""
    return tokens if group == 1 else tokens.repeat_interleave(group, dim=1)


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
