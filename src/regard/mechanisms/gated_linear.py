"""Gated linear attention: linear attention whose state decays by a trained gate for each token and channel of the key.

    S_t = diag(alpha_t) S_(t-1) + k_t v_t^T,    o_t = scale S_t^T q_t
    alpha_t = sigmoid(forget_t)^(1 / temperature)

Yang et al. 2024, "Gated linear attention transformers with hardware-efficient training", equation 3, with the gates of
its section 4.4, whose temperature of 16 keeps them near 1. The norm and the output gate belong to the layer.

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim), forget (batch, heads, keys, head_dim).

Time is n * head_dim * value_dim and memory n * (head_dim + value_dim); decoding
carries head_dim * value_dim numbers for each head, however long the text. A state has no scores, so it cannot take a
bias or dropout of weights, nor a mask that shows other keys to other queries, beside the causal one
(``LinearStateMechanism``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import check_number
from regard.kernels.reference.scan import ScanRequest
from regard.mechanisms.extra_input import ExtraInput
from regard.mechanisms.scan_mechanism import ScanMechanism


@final
@explain_arguments
class GatedLinear(ScanMechanism):
    """Gated linear attention: S_t = diag(alpha_t) S_(t-1) + k_t v_t^T, alpha = sigmoid(forget)^(1 / temperature).

    Args:
        heads, head_dim: of the queries.
        temperature: the larger it is, the slower the state decays.
        scale: factor of the queries; None is 1/sqrt(head_dim).
        impl: "auto", "native" or "reference" (``LinearStateMechanism``).

    ``forget`` (batch, heads, keys, head_dim) are the logits of the gates; without it the state does not decay.
    """

    traits = replace(ScanMechanism.traits, takes_rotation=False)  # channels of a key decay apart

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        temperature: float = 16.0,
        scale: float | None = None,
        impl: str = "auto",
    ) -> None:
        super().__init__(heads=heads, head_dim=head_dim, scale=scale, impl=impl)
        check_number("temperature", temperature, above=0.0)
        self.temperature = float(temperature)

    @property
    def extra_inputs(self) -> tuple[ExtraInput, ...]:
        """The logits of the forget gates, one for each channel of a key."""
        return (ExtraInput("forget", side="key", heads=self.heads, size=self.head_dim, may_be_wide=True),)

    def make_scan(
        self,
        query: Float[Tensor, "batch heads keys head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
        value: Float[Tensor, "batch heads keys value_dim"],
        inputs: Mapping[str, Tensor],
    ) -> ScanRequest:
        """Compute the logarithms of the gates."""
        log_decay = None
        if "forget" in inputs:
            log_decay = torch.nn.functional.logsigmoid(inputs["forget"]) / self.temperature
        return ScanRequest(query, key, value, log_decay)

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"{super().extra_repr()}, temperature={self.temperature:g}"
