"""Forgetting attention: softmax attention whose scores decay along the sequence by a trained gate for each token.

    o_i = sum_{j <= i} w_ij v_j        w_i = softmax_j(scale * q_i . k_j + d_ij)
    d_ij = sum_{l = j+1 .. i} log f_l  f_l = sigmoid(forget_l)                      scale = 1/sqrt(head_dim)

Lin, Nikishin, He and Courville 2025, "Forgetting Transformer: softmax attention with a forget gate", equations 4 to 7.
d_ij = c_i - c_j with the running sum c_i = log f_1 + .. + log f_i, and softmax ignores what a row has in common, so a
block of queries is exact attention with one bias for each key, c_first - c_j, where first is the block's first query:
memory is linear in length. Subtracting c_first keeps the bias of the keys that matter small.

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim), forget (batch, heads, keys, 1). Later
keys are hidden by the mechanism itself. A token that is hidden from every query, such as padding, does not decay the
others. Masks that hide earlier keys from some queries only are not supported: d_ij would sum the gates of hidden keys.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import final

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from regard import masks
from regard.arguments import explain_arguments
from regard.kernels.autocast import disable_autocast
from regard.kernels.request import Request
from regard.kernels.results import accumulation_dtype
from regard.kernels.select import select
from regard.masks.causal_parts import causal_parts
from regard.mechanisms.base import Mechanism
from regard.mechanisms.extra_input import ExtraInput
from regard.mechanisms.weights import weights_by_gradient

_BLOCK = 256
"""Queries that share a bias. In float32 the sum of |log f| over a block times 6e-8 bounds the error of their scores."""


@final
@explain_arguments
class Forgetting(Mechanism):
    """Forgetting attention: softmax(scale * q_i . k_j + sum_{j < l <= i} log sigmoid(forget_l)) over j <= i.

    ``forget`` (batch, heads, keys, 1) are the logits of the gates; without it nothing is forgotten, and this is causal
    dot-product attention.
    """

    hides_later_keys: bool = True

    def __init__(self, *, heads: int, head_dim: int, dropout: float = 0.0) -> None:
        super().__init__(heads=heads, head_dim=head_dim, dropout=dropout)

    @property
    def extra_inputs(self) -> tuple[ExtraInput, ...]:
        """The logits of the forget gates, one for each head and token."""
        return (ExtraInput("forget", side="key", heads=self.heads, size=1),)

    @property
    def scale(self) -> float:
        """Factor of the scores: 1/sqrt(head_dim)."""
        return float(self.head_dim**-0.5)

    def refuses(self, request: Request) -> str | None:
        """Refuse a bias, and masks that hide earlier keys from some queries only."""
        if request.bias is not None:
            return "a bias is not part of its equation: its gates decay the scores by position"
        if causal_parts(request.mask, request.frame) is None:
            return (
                "a score decays by the gates of all tokens between key and query, so none of them may be hidden: "
                "a mask must be causal, hide keys from all queries, or both"
            )
        return None

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output; half precision is computed in float32 and rounded once."""
        return self._attend(request, "auto")

    def row_weights(self, request: Request, rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows keys"]:
        """Compute the weights of some queries; in plain torch if gradients are enabled.

        The fused kernels behind the output have no second derivatives.
        """
        impl = "reference" if torch.is_grad_enabled() else "auto"
        return weights_by_gradient(partial(self._attend, impl=impl), request, rows)

    def _attend(self, request: Request, impl: str) -> Float[Tensor, "batch heads queries value_dim"]:
        frame, parts = request.frame, causal_parts(request.mask, request.frame)
        assert parts is not None
        high = frame.offset if parts.high is None else min(frame.offset, parts.high)  # j - i of a query's last key
        dtype = accumulation_dtype(request.query.dtype)
        query, key, value = (side.to(dtype) for side in (request.query, request.key, request.value))
        visible = parts.visible_keys(frame, request.device)
        outputs = []
        with disable_autocast(request.device):
            total = _sum_log_gates(request.inputs.get("forget"), visible)
            for first in range(0, max(frame.queries, 1), _BLOCK):
                last = min(first + _BLOCK, frame.queries)
                end = max(last + high, 0)
                mask = masks.causal() if visible is None else masks.causal() & masks.keep(visible[..., None, :end])
                bias = None
                if total is not None and end > 0:
                    at = min(max(first + high, 0), end - 1)
                    bias = (total[..., at, None] - total[..., :end])[..., None, :].to(dtype)
                block = replace(
                    request,
                    query=query[:, :, first:last],
                    key=key[:, :, :end],
                    value=value[:, :, :end],
                    mask=mask,
                    bias=bias,
                    inputs={},
                )
                outputs.append(select("attention", impl, block).compute(block))
        return torch.cat(outputs, dim=2).to(request.query.dtype)


def _sum_log_gates(
    forget: Float[Tensor, "batch heads keys 1"] | None, visible: Bool[Tensor, "#batch #heads keys"] | None
) -> Float64[Tensor, "batch heads keys"] | None:
    """Compute the running sums of log f over visible tokens; NaN from the first gate on that is not finite.

    The gate of the first visible token decays nothing, since no visible key is before it, and is left out.
    """
    if forget is None:
        return None
    logits = forget[..., 0].double()
    shown = torch.ones_like(logits, dtype=torch.bool) if visible is None else visible.expand_as(logits)
    used = shown & (shown.cumsum(-1) > 1)
    bad = ~logits.isfinite()
    # Gradients of unused gates are 0 also where they are not finite: the NaN is added as a constant.
    gates = torch.nn.functional.logsigmoid(logits.masked_fill(bad | ~used, 0.0)).masked_fill(~used, 0.0)
    return (gates + torch.where(bad & used, torch.nan, 0.0)).cumsum(-1)
