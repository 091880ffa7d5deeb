"""Kimi delta attention: the gated delta rule with one decay for each channel of the key.

    S_t = (I - beta_t k_t k_t^T) diag(alpha_t) S_(t-1) + beta_t k_t v_t^T,    o_t = scale S_t^T q_t
    beta_t = sigmoid(beta)        alpha_t = exp(-exp(log_rate) softplus(decay_t + decay_bias))

Kimi Team 2025, "Kimi Linear: an expressive, efficient attention architecture", equation 1. Queries and keys are divided
by their L2 norm. Short convolutions, the norm and the output gate belong to the layer.

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim), beta (batch, heads, keys, 1), decay
(batch, heads, keys, head_dim). ``ScanMechanism`` says which masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from jaxtyping import Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import check_flag
from regard.mechanisms.extra_input import ExtraInput
from regard.mechanisms.l2_norm import l2_normalize
from regard.mechanisms.scan_mechanism import ScanMechanism, ScanTerms
from regard.mechanisms.softplus_step import draw_log_rate, draw_step_bias, softplus


@final
@explain_arguments
class KimiDelta(ScanMechanism):
    """Kimi delta attention: S_t = (I - beta_t k_t k_t^T) diag(alpha_t) S_(t-1) + beta_t k_t v_t^T.

    Args:
        heads, head_dim: of the queries.
        normalize: whether queries and keys are divided by their L2 norm. Without it keys should have a norm of at most
            1, else the state may grow without bound.
        scale: factor of the queries; None is 1/sqrt(head_dim).
        impl: "auto", "native" or "reference" (``ScanMechanism``).

    ``beta`` (batch, heads, keys, 1) and ``decay`` (batch, heads, keys, head_dim) are logits. Without beta the rate is
    1: what is stored for a key is replaced; without decay the state does not decay. ``log_rate`` (heads) and
    ``decay_bias`` (heads, head_dim) are trained.
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
        self.decay_bias = nn.Parameter(draw_step_bias(heads, head_dim))

    @property
    def extra_inputs(self) -> tuple[ExtraInput, ...]:
        """The logits of the rates, one for each head and token, and of the decays, one for each channel."""
        return (
            ExtraInput("beta", side="key", heads=self.heads, size=1),
            ExtraInput("decay", side="key", heads=self.heads, size=self.head_dim),
        )

    def make_terms(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
        value: Float[Tensor, "batch heads keys value_dim"],
        inputs: Mapping[str, Tensor],
    ) -> ScanTerms:
        """Normalize queries and keys, and compute the rates and the decays."""
        if self.normalize:
            query, key = l2_normalize(query), l2_normalize(key)
        beta = inputs["beta"][..., 0].sigmoid() if "beta" in inputs else key.new_ones(key.shape[:3])
        log_decay = None
        if "decay" in inputs:
            rate = self.log_rate.to(key.dtype).exp()[:, None, None]
            log_decay = -rate * softplus(inputs["decay"] + self.decay_bias.to(key.dtype)[:, None])
        return ScanTerms(query, key, value, log_decay, beta)

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"{super().extra_repr()}, normalize={self.normalize}"
