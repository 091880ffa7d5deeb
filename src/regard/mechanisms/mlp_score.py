"""Attention whose score is a network with one hidden layer over query and key.

    score(q, k) = v . tanh(a + b)         a depends on the query only, b on the key only: (inner) numbers each

Bahdanau et al. 2015, appendix A.1.2. Mechanisms differ in how they compute a and b. Both are computed once per token; a
pair costs ``inner`` tanh. Plain torch holds a queries x keys x inner tensor, the fused kernel not even a queries x keys
one.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import DtypeError, ShapeError, check_size, check_weights
from regard.kernels.implementations.mlp_score import MLPScore
from regard.kernels.request import Bias, Request
from regard.kernels.results import accumulation_dtype
from regard.kernels.select import attend, impl_names
from regard.kernels.token_projection import TokenProjection
from regard.masks.base import Mask
from regard.mechanisms.base import Traits
from regard.mechanisms.scored_mechanism import ScoredMechanism
from regard.mechanisms.steps import Steps
from regard.validation import check_tokens


@explain_arguments
class MLPScoreMechanism(ScoredMechanism):
    """Base class of mechanisms with a hidden layer: softmax(v . tanh(a_i + b_j)) V.

    ``inner`` is the size of the hidden layer; None is head_dim. ``impl`` is "native" (the fused kernel, on a CPU),
    "reference" (plain torch), or "auto": native if it supports the call. ``observe`` and ``weights`` run in plain
    torch, in tiles.
    """

    traits = Traits(implementations=impl_names("mlp score"), takes_rotation=False, ignores_hidden_keys=True)

    def __init__(self, *, heads: int, head_dim: int, dropout: float, inner: int | None, impl: str) -> None:
        super().__init__(heads=heads, head_dim=head_dim, dropout=dropout)
        self.impl = self.check_impl(impl)
        inner = head_dim if inner is None else inner
        check_size("inner", inner)
        check_weights(heads=heads, inner=inner, head_dim=2 * head_dim)
        self.inner = inner

    @abstractmethod
    def project_query(
        self, query: Float[Tensor, "batch heads rows head_dim"]
    ) -> Float[Tensor, "batch heads rows inner"]:
        """Compute a of every query, in the dtype of ``query``."""

    @abstractmethod
    def project_key(self, key: Float[Tensor, "batch heads keys head_dim"]) -> Float[Tensor, "batch heads keys inner"]:
        """Compute b of every key, in the dtype of ``key``."""

    @property
    @abstractmethod
    def vector(self) -> Float[Tensor, "heads inner"]:
        """The score vector v (heads, inner)."""

    @final
    def score(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
    ) -> Float[Tensor, "batch heads rows keys"]:
        """Compute v . tanh(a + b) of every pair; NaN if a or b overflowed."""
        return self._make_score(None).score_pairs(query, self.project_key(key))

    @final
    def project_keys(
        self, key: Float[Tensor, "batch key_heads keys head_dim"]
    ) -> Float[Tensor, "batch heads keys inner"]:
        """Compute b of every key once, for several calls with the same keys: pass it to each as ``projected_keys``.

        In float32 for half precision; NaN if a key is not finite. Raises ShapeError for keys of other sizes.
        """
        check_tokens("key", key, f"(batch, key_heads, keys, {self.head_dim})")
        if key.dim() != 4 or key.shape[3] != self.head_dim or key.shape[1] == 0 or self.heads % key.shape[1]:
            raise ShapeError(
                f"keys do not fit {type(self).__name__}",
                expected=f"(batch, key_heads, keys, {self.head_dim}), {self.heads} heads a multiple of key_heads",
                got=str(tuple(key.shape)),
                do="build the mechanism with the heads and head_dim of the query",
            )
        return self._make_score(None).project_keys(key, self.heads // key.shape[1])

    def forward(  # type: ignore[override]  # no input that it declares is named "projected_keys"
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | None = None,
        *,
        bias: Bias | None = None,
        projected_keys: Tensor | None = None,
        **inputs: Tensor | TokenProjection,
    ) -> Tensor:
        """Compute the output (batch, heads, queries, value_dim) with the chosen implementation.

        ``projected_keys`` is ``self.project_keys(key)`` if it was computed before. Raises the errors of
        ``regard.attention``.
        """
        request = self.make_request(query, key, value, mask, bias, inputs)
        self._check_projected_keys(projected_keys, request)
        return attend("mlp score", self.impl, request, self._make_score(projected_keys))

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output with the chosen implementation."""
        return attend("mlp score", self.impl, request, self._make_score(None))

    def steps(self, request: Request) -> Steps:
        """Return the projected queries and keys of the hidden layer, and its score vector."""
        key = self.project_key(request.repeated_key)
        return Steps(self.project_query(request.query), key, request.mask, vector=self.vector)

    def _make_score(self, projected_keys: Tensor | None) -> MLPScore:
        return MLPScore(
            self.project_query,
            self.project_key,
            lambda: self.vector,
            projected_keys,
            score_parameters=tuple(self.parameters()),
        )

    def _check_projected_keys(self, projected_keys: Tensor | None, request: Request) -> None:
        """Raise ShapeError or DtypeError unless ``projected_keys`` has the shape and dtype for these keys."""
        if projected_keys is None:
            return
        check_tokens("projected_keys", projected_keys, "(batch, heads, keys, inner)")
        batch, heads, keys = request.query.shape[0], self.heads, request.key.shape[2]
        if projected_keys.shape != (batch, heads, keys, self.inner):
            raise ShapeError(
                "projected keys do not fit the call",
                expected=f"(batch, heads, keys, inner) = {(batch, heads, keys, self.inner)}",
                got=str(tuple(projected_keys.shape)),
                do="projected_keys = mechanism.project_keys(key), with the key of this call",
            )
        if projected_keys.dtype != accumulation_dtype(request.key.dtype):
            raise DtypeError(
                "projected keys have another dtype",
                expected=f"{accumulation_dtype(request.key.dtype)}, for keys of {request.key.dtype}",
                got=str(projected_keys.dtype),
                do="projected_keys = mechanism.project_keys(key), with the key of this call",
            )

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"{super().extra_repr()}, inner={self.inner}, impl={self.impl!r}"


def per_head_linear(
    tokens: Float[Tensor, "batch heads length size"], weight: Float[Tensor, "heads out size"]
) -> Float[Tensor, "batch heads length out"]:
    """Multiply every token by the matrix of its head.

    ``tokens @ weight.mT`` would repeat the matrices for each batch entry, and hold as many copies of their gradients.
    """
    return torch.einsum("bhls,hos->bhlo", tokens, weight)
