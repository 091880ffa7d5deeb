"""Linformer: keys and values are projected along their length to a fixed number before queries attend to them.

    output = softmax(scale * Q (E K)^T) F V        E, F (projected, length), scale = 1/sqrt(head_dim)

Wang et al. 2020, "Linformer: self-attention with linear complexity", equation 7; E and F are shared by all heads of the
layer, initialised as in theorem 2. Fewer keys than ``length`` use the first columns of E and F. Time and memory are
n * projected. It approximates softmax attention: the weights of a query over keys are softmax(..) F, of either sign.

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim). A key that is hidden from every query,
such as padding, is left out of the projection. Masks that differ between queries, such as causal ones, are not
supported, since the projection mixes keys for all queries alike.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import check_size, check_weights
from regard.kernels.autocast import disable_autocast
from regard.kernels.request import Request
from regard.kernels.results import accumulation_dtype
from regard.kernels.select import select
from regard.masks.causal_parts import causal_parts
from regard.mechanisms.base import Mechanism
from regard.mechanisms.weights import weights_by_gradient


@final
@explain_arguments
class Linformer(Mechanism):
    """Linformer: softmax(scale * Q (E K)^T) F V, for at most ``length`` keys, projected to ``projected``."""

    weights_are: ClassVar[Literal["signed"]] = "signed"
    approximates: ClassVar[str] = "dot_product"

    def __init__(
        self, *, heads: int, head_dim: int, length: int = 512, projected: int = 128, dropout: float = 0.0
    ) -> None:
        super().__init__(heads=heads, head_dim=head_dim, dropout=dropout)
        check_size("length", length)
        check_size("projected", projected)
        check_weights(projected=projected, length=length)
        self.length, self.projected = length, projected
        self.key_projection = nn.Parameter(torch.randn(projected, length) * projected**-0.5)
        self.value_projection = nn.Parameter(torch.randn(projected, length) * projected**-0.5)

    @property
    def scale(self) -> float:
        """Factor of the scores: 1/sqrt(head_dim)."""
        return float(self.head_dim**-0.5)

    def refuses(self, request: Request) -> str | None:
        """Refuse masks that differ between queries, a bias, and more keys than ``length``."""
        if request.frame.keys > self.length:
            return f"its projections were made for at most {self.length} keys, and there are {request.frame.keys}"
        if request.bias is not None:
            return "a bias is defined for pairs of a query and a key, and it projects keys along their length first"
        parts = causal_parts(request.mask, request.frame)
        if parts is None or (parts.high is not None and parts.high < request.frame.keys - 1):
            return "it projects keys along their length, so every query attends to the same keys: no causal mask"
        return None

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output; half precision is computed in float32 and rounded once."""
        return self._attend(request, "auto")

    def _attend(self, request: Request, impl: str) -> Float[Tensor, "batch heads queries value_dim"]:
        parts, dtype = causal_parts(request.mask, request.frame), accumulation_dtype(request.query.dtype)
        assert parts is not None
        shown = parts.visible_keys(request.frame, request.device)
        group = 1 if shown is None or shown.shape[1] == 1 else request.group
        key, value = (side.to(dtype).repeat_interleave(group, dim=1) for side in (request.key, request.value))
        bad = ~(key.isfinite().all(-1) & value.isfinite().all(-1))
        kept = ~bad if shown is None else ~bad & shown
        with disable_autocast(request.device):
            projected = replace(
                request,
                query=request.query.to(dtype),
                key=self._project(self.key_projection, key, kept),
                value=self._project(self.value_projection, value, kept),
                mask=None,
            )
            output = select("attention", impl, projected).compute(projected)
        some = bad.new_ones(bad.shape[:2]) if shown is None else shown.any(-1).expand(bad.shape[:2])
        some = some & (bad.shape[2] > 0)
        broken = (bad if shown is None else bad & shown).any(-1)
        some, broken = (flag.repeat_interleave(request.query.shape[1] // flag.shape[1], 1) for flag in (some, broken))
        output = output.masked_fill(~some[..., None, None], 0.0).masked_fill(broken[..., None, None], torch.nan)
        return output.to(request.query.dtype)

    def row_weights(self, request: Request, rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows keys"]:
        """Compute softmax(scale * Q (E K)^T) F of some queries; in plain torch if gradients are enabled.

        The fused kernels behind the output have no second derivatives.
        """
        if not torch.is_grad_enabled():
            return super().row_weights(request, rows)
        return weights_by_gradient(partial(self._attend, impl="reference"), request, rows)

    def _project(
        self,
        weight: Float[Tensor, "projected length"],
        tokens: Float[Tensor, "batch key_heads keys size"],
        kept: Tensor,
    ) -> Float[Tensor, "batch key_heads projected size"]:
        """Compute E K or F V, from the tokens where ``kept`` is True."""
        return weight[:, : tokens.shape[2]].to(tokens) @ tokens.masked_fill(~kept[..., None], 0.0)

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"{super().extra_repr()}, length={self.length}, projected={self.projected}"
