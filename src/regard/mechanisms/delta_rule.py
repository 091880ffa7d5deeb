"""``DeltaRule``: base class of the gated delta rules, whose state is corrected by what a new key would read from it.

    S_t = (I - beta_t k_t k_t^T) D_t S_(t-1) + beta_t k_t v_t^T

    D_t = diag(exp(-exp(log_rate) softplus(decay_t + decay_bias)))      a number for each head, or for each channel

Yang et al. 2025, "Gated delta networks", equation 10.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import final

from jaxtyping import Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import check_flag
from regard.kernels.reference.scan import ScanRequest
from regard.mechanisms.extra_input import ExtraInput
from regard.mechanisms.mamba2 import draw_log_rate, draw_step_bias, softplus
from regard.mechanisms.scan_mechanism import ScanMechanism


@explain_arguments
class DeltaRule(ScanMechanism):
    """Gated delta rule, for subclasses that say how many decays there are.

    ``normalize`` says whether queries and keys are divided by their L2 norm; the other options are ``ScanMechanism``'s.
    """

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        normalize: bool = True,
        scale: float | None = None,
        impl: str = "auto",
    ) -> None:
        super().__init__(heads=heads, head_dim=head_dim, scale=scale, impl=impl)
        check_flag("normalize", normalize)
        self.normalize = normalize
        self.log_rate = nn.Parameter(draw_log_rate(heads))
        self.decay_bias = nn.Parameter(draw_step_bias(*((heads,) if self.decay_size == 1 else (heads, head_dim))))

    @property
    @abstractmethod
    def decay_size(self) -> int:
        """The number of decays of a head and token: 1, or ``head_dim``."""

    @final
    def compute_log_decay(
        self, logits: Float[Tensor, "batch heads keys decay_size"]
    ) -> Float[Tensor, "batch heads keys decay_size"]:
        """Compute -exp(log_rate) softplus(decay + decay_bias)."""
        rate = self.log_rate.to(logits.dtype).exp()[:, None, None]
        return -rate * softplus(logits + self.decay_bias.to(logits.dtype).view(self.heads, 1, -1))

    @property
    @final
    def extra_inputs(self) -> tuple[ExtraInput, ...]:
        """The logits of the rates, one for each head and token, and of the decays."""
        sizes = {"beta": 1, "decay": self.decay_size}
        return tuple(
            ExtraInput(name, side="key", heads=self.heads, size=size, may_be_wide=True) for name, size in sizes.items()
        )

    @final
    def make_scan(
        self,
        query: Float[Tensor, "batch heads keys head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
        value: Float[Tensor, "batch heads keys value_dim"],
        inputs: Mapping[str, Tensor],
    ) -> ScanRequest:
        """Normalize queries and keys, and compute the rates and the decays."""
        if self.normalize:
            query, key = l2_normalize(query), l2_normalize(key)
        beta = inputs["beta"].sigmoid() if "beta" in inputs else key.new_ones(*key.shape[:3], 1)
        log_decay = self.compute_log_decay(inputs["decay"]) if "decay" in inputs else None
        return ScanRequest(query, key, value, log_decay, beta)

    @final
    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"{super().extra_repr()}, normalize={self.normalize}"


_EPSILON = 1e-6
"""Added to the squared norm, as in the code of the authors of Gated DeltaNet; a token of zeros stays 0."""


def l2_normalize(tokens: Float[Tensor, "batch heads length size"]) -> Float[Tensor, "batch heads length size"]:
    """Compute x / sqrt(|x|^2 + 10^-6)."""
    return tokens * (tokens.square().sum(-1, keepdim=True) + _EPSILON).rsqrt()
