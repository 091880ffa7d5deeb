"""The mechanism of a recorded layer: it computes the weights and statistics of a call again, on request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from jaxtyping import Float, Int
from torch import Tensor

from regard.kernels.reference import attention as reference_attention
from regard.kernels.request import Request
from regard.kernels.select import attend
from regard.mechanisms.base import Mechanism
from regard.mechanisms.dot_product import CAPPED, WITH_SINKS, DotProduct


def make_mechanism(
    *, heads: int, head_dim: int, scale: float | None, softcap: float | None, sinks: Tensor | None
) -> Mechanism:
    """Make the mechanism that computes a layer with these arguments of ``attention_function``."""
    if softcap is None and sinks is None:
        return DotProduct(heads=heads, head_dim=head_dim, scale=scale)
    return RecordedDotProduct(heads=heads, head_dim=head_dim, scale=scale, softcap=softcap, sinks=sinks)


@final
class RecordedDotProduct(Mechanism):
    """Dot products with the softcap or the sinks (#batch, heads, #queries, 1) of a recorded layer."""

    def __init__(
        self, *, heads: int, head_dim: int, scale: float | None, softcap: float | None, sinks: Tensor | None
    ) -> None:
        super().__init__(heads=heads, head_dim=head_dim)
        self.factor, self.softcap = head_dim**-0.5 if scale is None else float(scale), softcap
        self.sinks = None
        self.traits = CAPPED if sinks is None else WITH_SINKS
        if sinks is not None:
            self.sinks = sinks.detach().clone().reshape((1, -1, 1, 1) if sinks.dim() == 1 else sinks.shape)

    @property
    def scale(self) -> float:
        """Factor of the dot products."""
        return self.factor

    @property
    def terms(self) -> Mapping[str, Any]:
        """The terms of its calls beside mask and bias, by name."""
        return {**super().terms, "softcap": self.softcap, "sinks": self.sinks}

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output of a recorded call, by the kernel that "auto" chooses."""
        return attend("attention", "auto", request)

    def row_weights(self, request: Request, rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows keys"]:
        """Compute the weights of some queries."""
        return reference_attention.compute_weights(reference_attention.make_dot_product_problem(request), rows)
