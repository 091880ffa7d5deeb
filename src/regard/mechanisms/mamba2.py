"""Mamba-2: a selective state space as attention, with one decay for each head and token.

    S_t = exp(-rate step_t) S_(t-1) + step_t k_t v_t^T,    o_t = scale S_t^T q_t
    step_t = softplus(time_step_t + step_bias)             rate = exp(log_rate)

Dao and Gu 2024, "Transformers are SSMs: generalized models and efficient algorithms through structured state space
duality", equation 1: q is C, k is B, v is x, rate is -A, and step is Delta, the input ``time_step`` (batch,
heads, keys, 1) of each token. The skip connection D x, the convolution and the gate belong to the layer
(``layers.Mamba2Mixer``).

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim), where head_dim is the paper's state
size; value (batch, key_heads, keys, value_dim).

As in the authors' code, the initial rates are uniform from 1 to 16, and the logarithms of the initial steps uniform
between the logarithms of 0.001 and 0.1; the gated delta rules begin with the same.

Time is n * head_dim * value_dim and memory n * (head_dim + value_dim); decoding
carries head_dim * value_dim numbers for each head, however long the text. A state has no scores, so it cannot take a
bias or dropout of weights, nor a mask that shows other keys to other queries, beside the causal one
(``LinearStateMechanism``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import OptionError, short_repr
from regard.kernels.reference.scan import ScanRequest
from regard.mechanisms.extra_input import ExtraInput
from regard.mechanisms.scan_mechanism import ScanMechanism


@final
@explain_arguments
class Mamba2(ScanMechanism):
    """Mamba-2: o_i = scale * sum_{j <= i} exp(-rate sum_{j < l <= i} step_l) step_j (q_i . k_j) v_j.

    Args:
        heads, head_dim: of the queries; head_dim is the state size N of the paper.
        time_step_limit: the least and the largest step.
        scale: factor of the queries; 1 in the paper.
        impl: "auto", "native" or "reference" (``LinearStateMechanism``).

    ``time_step`` (batch, heads, keys, 1) are the logits of the steps; without it they are 0, so a step is
    softplus(step_bias). ``log_rate`` and ``step_bias`` (heads) are trained.
    """

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        time_step_limit: Sequence[float] = (0.0, math.inf),
        scale: float = 1.0,
        impl: str = "auto",
    ) -> None:
        super().__init__(heads=heads, head_dim=head_dim, scale=scale, impl=impl)
        self.time_step_limit = _check_limit(time_step_limit)
        self.log_rate = nn.Parameter(draw_log_rate(heads))
        self.step_bias = nn.Parameter(draw_step_bias(heads))

    @property
    def extra_inputs(self) -> tuple[ExtraInput, ...]:
        """The logits of the steps, one for each head and token."""
        return (ExtraInput("time_step", side="key", heads=self.heads, size=1, may_be_wide=True),)

    def make_scan(
        self,
        query: Float[Tensor, "batch heads keys head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
        value: Float[Tensor, "batch heads keys value_dim"],
        inputs: Mapping[str, Tensor],
    ) -> ScanRequest:
        """Multiply the values by their steps, and compute the decays."""
        logits = inputs["time_step"] if "time_step" in inputs else key.new_zeros(*key.shape[:3], 1)
        step = softplus(logits + self.step_bias.to(key.dtype)[:, None, None]).clamp(*self.time_step_limit)
        return ScanRequest(query, key, value * step, -self.log_rate.to(key.dtype).exp()[:, None, None] * step)

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"{super().extra_repr()}, time_step_limit={self.time_step_limit}"


def _check_limit(limit: Sequence[float]) -> tuple[float, float]:
    """Return the limits. Raises OptionError unless they are two numbers of at least 0, in order."""
    valid = isinstance(limit, Sequence) and len(limit) == 2 and all(isinstance(bound, int | float) for bound in limit)
    if not valid or not 0.0 <= limit[0] <= limit[1]:
        raise OptionError(
            "time_step_limit is not a range of steps",
            expected="two numbers, the least and the largest step, of at least 0",
            got=short_repr(limit),
            do="leave it out for any step",
        )
    return float(limit[0]), float(limit[1])


_RATES = (1.0, 16.0)
_STEPS = (1e-3, 0.1)


def draw_log_rate(*shape: int) -> Tensor:
    """Draw logarithms of decay rates."""
    return torch.empty(shape).uniform_(*_RATES).log()


def draw_step_bias(*shape: int) -> Tensor:
    """Draw biases whose softplus is a step: ln(exp(step) - 1)."""
    step = torch.empty(shape).uniform_(math.log(_STEPS[0]), math.log(_STEPS[1])).exp()
    return step + torch.log(-torch.expm1(-step))


def softplus(logits: Tensor) -> Tensor:
    """Compute ln(1 + exp(x)); exact for every x, where torch's function returns x from 20 on."""
    return -torch.nn.functional.logsigmoid(-logits)
