"""Scaled dot product: softmax(scale * Q K^T) V, scale = 1/sqrt(head_dim).

Vaswani et al. 2017, equation 1. It is ``regard.attention`` as a module, so every implementation supports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from regard.arguments import explain_arguments
from regard.contract import Observation
from regard.errors import check_choice
from regard.kernels.request import Bias, Request
from regard.kernels.select import impl_names, select
from regard.masks.base import Mask
from regard.mechanisms.base import ScoredMechanism
from regard.mechanisms.paged_cache import PagedCache
from regard.mechanisms.state import State
from regard.mechanisms.steps import Steps
from regard.validation import check_scale, check_top, query_rows


@final
@explain_arguments
class DotProduct(ScoredMechanism):
    """Scaled dot-product attention: softmax(scale * Q K^T) V.

    ``scale=None`` is 1/sqrt(head_dim). ``impl`` is the implementation, as for ``regard.attention``.
    """

    implementations: ClassVar[tuple[str, ...]] = impl_names("attention")

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        dropout: float = 0.0,
        scale: float | None = None,
        impl: str = "auto",
    ) -> None:
        super().__init__(heads=heads, head_dim=head_dim, dropout=dropout)
        check_choice("impl", impl, ("auto", *self.implementations))
        check_scale(scale)
        self.impl = impl
        self.factor = head_dim**-0.5 if scale is None else float(scale)

    @property
    def scale(self) -> float:
        """Factor of the dot products, by default 1/sqrt(head_dim)."""
        return self.factor

    def score(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
    ) -> Float[Tensor, "batch heads rows keys"]:
        """Compute scale * q . k of every pair."""
        return (query * self.factor) @ key.transpose(-2, -1)

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output with the chosen implementation."""
        return select("attention", self.impl, request).compute(request)

    def steps(self, request: Request) -> Steps:
        """Return the inputs of the scaled dot product."""
        return Steps(request.query, request.repeated_key, request.mask, scale=self.factor)

    def observe(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | None = None,
        *,
        bias: Bias | None = None,
        top: int = 8,
        rows: Sequence[int] | Tensor | None = None,
        **inputs: Tensor,
    ) -> Observation:
        """Compute the output and statistics of the weights, before dropout, with the chosen implementation.

        Raises RefusedError if ``impl`` names one that does not expose its weights, as "sdpa" and "flex" do not.
        """
        request = self.make_request(query, key, value, mask, bias, inputs)
        check_top(top, request.frame.keys)
        index = query_rows(rows, request.frame.queries, request.device)
        return select("observe", self.impl, request).compute(request, top, index)

    def step(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        state: State,
        mask: Mask | None = None,
        *,
        bias: Bias | None = None,
        **inputs: Tensor,
    ) -> tuple[Tensor, State]:
        """Compute one step of decoding, as ``Mechanism.step`` does.

        A ``PagedCache`` is read in place, unless a forward hook needs contiguous keys and values, or there is a bias or
        dropout.
        """
        has_hooks = self._forward_pre_hooks or self._forward_hooks
        if not isinstance(state, PagedCache) or has_hooks or bias is not None or inputs or self.active_dropout:
            return super().step(query, key, value, state, mask, bias=bias, **inputs)
        state = state.extended(key, value)
        return state.attention(query, mask=mask, scale=self.factor, impl=self.impl), state

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"{super().extra_repr()}, scale={self.factor:.4g}, impl={self.impl!r}"
