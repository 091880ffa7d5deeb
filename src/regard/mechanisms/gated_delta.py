"""The gated delta rule: a state that decays, and in which each token replaces the value stored for its key.

    S_t = (I - beta_t k_t k_t^T) alpha_t S_(t-1) + beta_t k_t v_t^T,    o_t = scale S_t^T q_t
    beta_t = sigmoid(beta)        alpha_t = exp(-exp(log_rate) softplus(decay_t + decay_bias))

Yang, Kautz and Hatamizadeh 2025, "Gated delta networks: improving Mamba2 with delta rule", equation 10, with the gates
of its section 3.4. Queries and keys are divided by their L2 norm, so that I - beta k k^T never enlarges the state.
Without decay it is the delta rule of Yang et al. 2024, "Parallelizing linear transformers with the delta rule over
sequence length". Short convolutions, the norm and the output gate belong to the layer (``layers.GatedDeltaNet``).

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim), beta and decay (batch, heads, keys, 1).

Time is n * head_dim * value_dim and memory n * (head_dim + value_dim); decoding
carries head_dim * value_dim numbers for each head, however long the text. A state has no scores, so it cannot take a
bias or dropout of weights, nor a mask that shows other keys to other queries, beside the causal one
(``LinearStateMechanism``).
"""

from __future__ import annotations

from typing import final

from regard.arguments import explain_arguments
from regard.mechanisms.delta_rule import DeltaRule


@final
@explain_arguments
class GatedDelta(DeltaRule):
    """The gated delta rule: S_t = (I - beta_t k_t k_t^T) alpha_t S_(t-1) + beta_t k_t v_t^T.

    Args:
        heads, head_dim: of the queries.
        normalize: whether queries and keys are divided by their L2 norm. Without it keys should have a norm of at most
            1, else the state may grow without bound.
        scale: factor of the queries; None is 1/sqrt(head_dim).
        impl: "auto", "native" or "reference" (``LinearStateMechanism``).

    ``beta`` and ``decay`` (batch, heads, keys, 1) are logits. Without beta the rate is 1: the value stored for a key is
    replaced; without decay the state does not decay. ``log_rate`` and ``decay_bias`` (heads) are trained.
    """

    @property
    def decay_size(self) -> int:
        """One for each head and token."""
        return 1
