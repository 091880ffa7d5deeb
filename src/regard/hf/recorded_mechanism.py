"""The mechanism of a recorded layer: it computes the weights and statistics of a call again, on request.

plain layers                 scaled dot product
capped scores                softmax(c tanh(s / c)) (Gemma 2); see ``regard.attention``
attention sinks              a logit more in the denominator, so that weights sum to less than 1 (gpt-oss)
"""

from __future__ import annotations

from abc import ABC
from dataclasses import replace
from typing import ClassVar, Literal, final

from jaxtyping import Float, Int
from torch import Tensor

from regard.kernels.reference import attention as reference_attention
from regard.kernels.request import Request
from regard.kernels.select import select
from regard.mechanisms.base import Mechanism
from regard.mechanisms.dot_product import DotProduct


def make_mechanism(
    *, heads: int, head_dim: int, scale: float | None, softcap: float | None, sinks: Tensor | None
) -> Mechanism:
    """Make the mechanism that computes a layer with these arguments of ``attention_function``."""
    if softcap is None and sinks is None:
        return DotProduct(heads=heads, head_dim=head_dim, scale=scale)
    factor = head_dim**-0.5 if scale is None else float(scale)
    if sinks is None:
        return CappedDotProduct(heads=heads, head_dim=head_dim, scale=factor, softcap=softcap)
    sinks = sinks.detach().clone().reshape((1, -1, 1, 1) if sinks.dim() == 1 else sinks.shape)
    return SinkDotProduct(heads=heads, head_dim=head_dim, scale=factor, softcap=softcap, sinks=sinks)


class _ScaledMechanism(Mechanism, ABC):
    """Dot products with a scale, with a softcap or sinks of ``regard.attention``."""

    def __init__(
        self, *, heads: int, head_dim: int, scale: float, softcap: float | None, sinks: Tensor | None = None
    ) -> None:
        super().__init__(heads=heads, head_dim=head_dim)
        self.factor, self.softcap, self.sinks = scale, softcap, sinks

    @property
    def scale(self) -> float:
        """Factor of the dot products."""
        return self.factor

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output of a recorded call, by the kernel that "auto" chooses."""
        request = self._complete(request)
        return select("attention", "auto", request).compute(request)

    def row_weights(self, request: Request, rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows keys"]:
        """Compute the weights of some queries."""
        problem = reference_attention.make_dot_product_problem(self._complete(request))
        return reference_attention.compute_weights(problem, rows)

    def _complete(self, request: Request) -> Request:
        return replace(request, softcap=self.softcap, sinks=self.sinks)


@final
class CappedDotProduct(_ScaledMechanism):
    """Softmax of capped scores: ``softcap`` * tanh(scale * q . k / ``softcap``)."""

    no_steps_reason: ClassVar[str] = "This layer caps its scores (softcap)."


@final
class SinkDotProduct(_ScaledMechanism):
    """Softmax with an attention sink: ``sinks`` (#batch, heads, #queries, 1) are logits without a value."""

    weights_are: Literal["distribution", "non-negative", "signed"] = "non-negative"
    no_steps_reason: ClassVar[str] = "This layer has an attention sink, a trained score without a token."
