"""A recorded call of softmax attention: its mechanism, its mask and its bias in the smallest form.

The mechanism computes the weights and statistics of the call again, on request. A bias is nothing if it is 0, and a
table if it depends on distance alone: bias[h, i, j] = table[h, j - i]. T5 passes a tensor (1, heads, queries, keys) to
every layer, of zeros where it has no bias. It is quadratic in length, and the table linear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.contract import Observation
from regard.kernels.reference import attention as reference_attention
from regard.kernels.request import Bias, Request
from regard.kernels.select import attend
from regard.masks.visible_keys import VisibleKeys
from regard.mechanisms.base import Mechanism, Traits
from regard.mechanisms.dot_product import DotProduct, dot_product_steps
from regard.mechanisms.steps import Steps
from regard.positions.base import DistanceBias
from regard.recording.calls import LayerCall


def make_call(
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    visible: VisibleKeys,
    bias: Bias | None,
    scale: float | None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> LayerCall:
    """Make the call of a layer from what ``regard.attention`` takes; its keys begin with key 0.

    Keys at the end that no query may attend to, such as the unused part of a static cache, are left out.
    """
    visible = visible.from_key_0
    keys = key.shape[2] if visible.stop is None else visible.stop
    heads, queries, head_dim = query.shape[1:]
    if isinstance(bias, Tensor):
        bias = _simplify_bias(visible.narrow(bias, 3), queries=queries, keys=keys)
    return LayerCall(
        name=name,
        mechanism=_make_mechanism(heads=heads, head_dim=head_dim, scale=scale, softcap=softcap, sinks=sinks),
        query=query.detach(),
        key=visible.narrow(key, 2).detach(),
        value=visible.narrow(value, 2).detach(),
        mask=visible.mask,
        bias=bias,
    )


def _make_mechanism(
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
        self.traits = Traits(weights_are="distribution" if sinks is None else "non-negative")
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

    def steps(self, request: Request) -> Steps:
        """Return the inputs of the scaled dot product."""
        return dot_product_steps(request)


@final
class RecordedDistanceBias(DistanceBias):
    """A bias by distance, for one number of queries and keys.

    ``numbers`` (heads, queries + keys - 1) are the biases of the distances 1 - keys to queries - 1.
    """

    def __init__(self, numbers: Float[Tensor, "heads distances"], *, keys: int) -> None:
        super().__init__()
        self.numbers, self.heads, self.lowest = numbers, numbers.shape[0], 1 - keys

    def table(self, lowest: int, highest: int) -> Float[Tensor, "heads distances"]:
        """Return the bias of distances; a distance that no query and key have gets the bias of the nearest."""
        distances = torch.arange(lowest, highest + 1, device=self.numbers.device)
        return self.numbers[:, (distances - self.lowest).clamp(0, self.numbers.shape[1] - 1)]


_LEAST_SUM = 0.98  # of weights that are a distribution, rounded to bfloat16


@final
class RecordedWeights(Mechanism):
    """A layer that computed weights (batch, heads, queries, keys) by code of its own: they are kept, not computed."""

    def __init__(
        self,
        weights: Float[Tensor, "batch heads queries keys"],
        *,
        head_dim: int,
        max_score: Float[Tensor, "batch heads queries"] | None,
    ) -> None:
        super().__init__(heads=weights.shape[1], head_dim=head_dim)
        self.kept, self.max_score = weights, max_score
        # With sinks, whose columns are left out, the sums are less than 1.
        sums = weights.sum(-1, dtype=torch.float32)
        is_distribution = not bool(((sums < _LEAST_SUM) | (sums > 2 - _LEAST_SUM)).any())
        is_signed = bool((weights < 0).any())
        self.traits = Traits(
            weights_are="signed" if is_signed else "distribution" if is_distribution else "non-negative",
            no_steps_reason="The model computes the weights of this layer by code of its own.",
        )

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output of the recorded call, from its weights."""
        values = request.value.repeat_interleave(request.group, dim=1)
        return self.kept.to(values.dtype) @ values

    def row_weights(self, request: Request, rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows keys"]:
        """The weights of some queries."""
        del request
        chosen = self.kept[:, :, rows]
        return chosen.float() if chosen.dtype.itemsize < 4 else chosen

    def observe_request(self, request: Request, top: int, rows: Int[Tensor, " rows"] | None) -> Observation:
        """Compute the statistics of the weights; the largest scores were kept."""
        return replace(super().observe_request(request, top, rows), max_score=self.max_score)


def join_kept_weights(calls: Sequence[Mechanism]) -> RecordedWeights | None:
    """The kept weights of calls with the same keys, as those of one with all queries; None if not all are kept."""
    parts = [call for call in calls if isinstance(call, RecordedWeights)]
    if len(parts) < len(calls):
        return None
    scores = [part.max_score for part in parts if part.max_score is not None]
    return RecordedWeights(
        torch.cat([part.kept for part in parts], dim=2),
        head_dim=parts[0].head_dim,
        max_score=torch.cat(scores, dim=2) if len(scores) == len(parts) else None,
    )


def make_kept_call(
    query: Tensor, key: Tensor, value: Tensor, weights: Tensor, *, max_score: Tensor | None
) -> LayerCall:
    """Make the call of a layer, without a name, whose weights are kept, with the largest score of each query."""
    mechanism = RecordedWeights(weights, head_dim=query.shape[3], max_score=max_score)
    return LayerCall("", mechanism, query, key, value, mask=None, bias=None)


def _simplify_bias(bias: Float[Tensor, "#batch #heads #queries #keys"], *, queries: int, keys: int) -> Bias | None:
    """Return an equal bias that takes less memory, if there is one; else a copy."""
    bias = bias.detach()
    if not bool(bias.any()):
        return None
    if bias.shape[0] == 1 and tuple(bias.shape[2:]) == (queries, keys):
        heads = bias[0]
        if torch.equal(heads[:, 1:, 1:], heads[:, :-1, :-1]):
            return RecordedDistanceBias(torch.cat((heads[:, -1], heads[:, :-1, -1].flip(1)), dim=1), keys=keys)
    return bias.clone()
