"""Kimi delta attention: the gated delta rule with one decay for each channel of the key.

    S_t = (I - beta_t k_t k_t^T) diag(alpha_t) S_(t-1) + beta_t k_t v_t^T,    o_t = scale S_t^T q_t
    beta_t = sigmoid(beta)        alpha_t = exp(-exp(log_rate) softplus(decay_t + decay_bias))

Kimi Team 2025, "Kimi Linear: an expressive, efficient attention architecture", equation 1. Queries and keys are divided
by their L2 norm. Short convolutions, the norm and the output gate belong to the layer.

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim), beta (batch, heads, keys, 1), decay
(batch, heads, keys, head_dim).

Time is n * head_dim * value_dim and memory n * (head_dim + value_dim); decoding
carries head_dim * value_dim numbers for each head, however long the text. A state has no scores, so it cannot take a
bias or dropout of weights, nor a mask that shows other keys to other queries, beside the causal one
(``LinearStateMechanism``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

from regard.arguments import explain_arguments
from regard.mechanisms.delta_rule import DeltaRule


@final
@explain_arguments
class KimiDelta(DeltaRule):
    """Kimi delta attention: S_t = (I - beta_t k_t k_t^T) diag(alpha_t) S_(t-1) + beta_t k_t v_t^T.

    Args:
        heads, head_dim: of the queries.
        normalize: whether queries and keys are divided by their L2 norm. Without it keys should have a norm of at most
            1, else the state may grow without bound.
        scale: factor of the queries; None is 1/sqrt(head_dim).
        impl: "auto", "native" or "reference" (``LinearStateMechanism``).

    ``beta`` (batch, heads, keys, 1) and ``decay`` (batch, heads, keys, head_dim) are logits. Without beta the rate is
    1: the value stored for a key is replaced; without decay the state does not decay. ``log_rate`` (heads) and
    ``decay_bias`` (heads, head_dim) are trained.
    """

    traits = replace(DeltaRule.traits, takes_rotation=False)  # channels of a key decay apart

    @property
    def decay_size(self) -> int:
        """One for each channel of the key."""
        return self.head_dim
