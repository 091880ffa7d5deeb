"""Forgetting attention: softmax attention whose scores decay along the sequence by a trained gate for each token.

    o_i = sum_{j <= i} w_ij v_j        w_i = softmax_j(scale * q_i . k_j + d_ij)
    d_ij = sum_{l = j+1 .. i} log f_l  f_l = sigmoid(forget_l)                      scale = 1/sqrt(head_dim)

Lin, Nikishin, He and Courville 2025, "Forgetting Transformer: softmax attention with a forget gate", equations 4 to 7.
Softmax ignores what a row has in common, so a block of queries is exact attention with one bias for each key: memory is
linear in length. For the keys up to the first query of the block it is d_first,j, and for later keys, which only later
queries see, minus the sum of log f from behind the first query to the key. Both are sums of terms of one sign, not
differences of running sums, in which a strongly closed gate would hide all decays behind it. The second sum is bounded:
a block ends where it would exceed ``_MAX_DECAY``.

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim), forget (batch, heads, keys, 1). Later
keys are hidden by the mechanism itself. A token that is hidden from every query, such as padding, does not decay the
others. Masks that hide earlier keys from some queries only are not supported: d_ij would sum the gates of hidden keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from regard import masks
from regard.arguments import explain_arguments
from regard.kernels.autocast import disable_autocast
from regard.kernels.request import Request
from regard.kernels.results import accumulation_dtype
from regard.kernels.select import attend
from regard.masks.causal_parts import causal_parts
from regard.mechanisms.base import Mechanism, Traits
from regard.mechanisms.extra_input import ExtraInput
from regard.mechanisms.steps import Steps
from regard.tensors import has_values

_BLOCK = 256
"""Most queries that share a bias."""
_MAX_DECAY = 1024.0
"""Most of the sum of |log f| over a block. In float32 the sum times 6e-8 bounds the error of the scores."""


@final
@explain_arguments
class Forgetting(Mechanism):
    """Forgetting attention: softmax(scale * q_i . k_j + sum_{j < l <= i} log sigmoid(forget_l)) over j <= i.

    ``forget`` (batch, heads, keys, 1) are the logits of the gates; without it nothing is forgotten, and this is causal
    dot-product attention.
    """

    traits = Traits(
        hides_later_keys=True,
        divides_scores=True,
        ignores_hidden_keys=True,
    )

    def __init__(self, *, heads: int, head_dim: int, dropout: float = 0.0) -> None:
        super().__init__(heads=heads, head_dim=head_dim, dropout=dropout)

    @property
    def extra_inputs(self) -> tuple[ExtraInput, ...]:
        """The logits of the forget gates, one for each head and token."""
        return (ExtraInput("forget", side="key", heads=self.heads, size=1, may_be_wide=True),)

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

    def attend_in_torch(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output without the fused kernels, which have no second derivatives."""
        return self._attend(request, "reference")

    def steps(self, request: Request) -> Steps:
        """Return the inputs of the scaled dot product, and the logarithms of the gates."""
        parts = causal_parts(request.mask, request.frame)
        assert parts is not None
        mask = masks.causal() if request.mask is None else request.mask & masks.causal()
        gates = _log_gates(request.inputs.get("forget"), parts.visible_keys(request.frame, request.device))
        return Steps(request.query, request.repeated_key, mask, scale=request.terms.scale, log_gates=gates)

    def _attend(self, request: Request, impl: str) -> Float[Tensor, "batch heads queries value_dim"]:
        frame, parts = request.frame, causal_parts(request.mask, request.frame)
        assert parts is not None
        high = frame.offset if parts.high is None else min(frame.offset, parts.high)  # j - i of a query's last key
        dtype = accumulation_dtype(request.query.dtype)
        query, key, value = (side.to(dtype) for side in (request.query, request.key, request.value))
        visible = parts.visible_keys(frame, request.device)
        outputs = []
        with disable_autocast(request.device):
            gates = _log_gates(request.inputs.get("forget"), visible)
            for first, last in _blocks(gates, frame.queries, high):
                end = max(last + high, 0)
                mask = masks.causal() if visible is None else masks.causal() & masks.keep(visible[..., None, :end])
                bias = None
                if gates is not None and end > 0:
                    bias = _sum_from(min(max(first + high, 0), end - 1), gates[..., :end])[..., None, :].to(dtype)
                block = request.replace(
                    query=query[:, :, first:last],
                    key=key[:, :, :end],
                    value=value[:, :, :end],
                    mask=mask,
                    bias=bias,
                    inputs={},
                )
                outputs.append(attend("attention", impl, block))
        return torch.cat(outputs, dim=2).to(request.query.dtype)


def _log_gates(
    forget: Float[Tensor, "batch heads keys 1"] | None, visible: Bool[Tensor, "#batch #heads keys"] | None
) -> Float64[Tensor, "batch heads keys"] | None:
    """Compute log f of visible tokens, and 0 for others; NaN for a gate that is not finite.

    The gate of the first visible token decays nothing, since no visible key is before it, and is left out.
    """
    if forget is None:
        return None
    logits = forget[..., 0].double()
    all_visible = torch.ones_like(logits, dtype=torch.bool) if visible is None else visible.expand_as(logits)
    used = all_visible & (all_visible.cumsum(-1) > 1)
    bad = ~logits.isfinite()
    # Gradients of unused gates are 0 also where they are not finite: the NaN is added as a constant.
    gates = torch.nn.functional.logsigmoid(logits.masked_fill(bad | ~used, 0.0)).masked_fill(~used, 0.0)
    return gates + torch.where(bad & used, torch.nan, 0.0)


def _sum_from(at: int, gates: Float64[Tensor, "batch heads keys"]) -> Float64[Tensor, "batch heads keys"]:
    """Sum log f from behind key j to key ``at``; for keys j behind it minus the sum from there to j.

    NaN where a gate in between is.
    """
    before = gates[..., 1 : at + 1].flip(-1).cumsum(-1).flip(-1)
    behind = gates[..., at + 1 :].cumsum(-1)
    return torch.cat([before, torch.zeros_like(gates[..., :1]), -behind], dim=-1)


def _blocks(gates: Float64[Tensor, "batch heads keys"] | None, queries: int, high: int) -> Iterator[tuple[int, int]]:
    """Divide the queries into blocks, first .. last - 1. Query i sees the keys up to i + ``high``.

    Where the gates have no values, as in a trace, a block ends with its number of queries alone.
    """
    decays = None
    if gates is not None and queries > 1 and gates.numel() > 0 and has_values(gates):
        # A gate of more than all that a block may have ends it, however much more. So these sums stay small.
        decays = gates.detach().nan_to_num(nan=0.0).clamp(min=-2 * _MAX_DECAY).cumsum(-1)
    first = 0
    while first < max(queries, 1):
        last = min(first + _BLOCK, queries)
        at = max(first + high, 0)
        if decays is not None and last + high > at + 1:
            within = (decays[..., at, None] - decays[..., at + 1 : last + high]).amax((0, 1))
            last = at + 1 - high + int((within <= _MAX_DECAY).sum())
        yield first, last
        first = max(last, first + 1)
