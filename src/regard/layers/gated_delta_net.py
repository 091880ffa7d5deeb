"""The gated delta net: the layer of Qwen3-Next in which most of its attention layers are replaced by a delta rule.

    q, k, v = silu(convolution(W_q x, W_k x, W_v x)),    o = gated_delta(q, k, v, beta = W_b x, decay = W_a x)
    output = W_o (w norm(o) silu(W_z x))

Yang, Kautz and Hatamizadeh 2025, "Gated delta networks", section 3.4 and figure 1, as in Qwen3-Next: the norm is the
root mean square of a head, with one weight for each of its channels, and queries and keys may have fewer heads than
values.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import check_number, check_sizes, check_weights
from regard.kernels.operators.activation_op import activate
from regard.layers.scan_mixer import ScanMixer, check_divides, rms_norm
from regard.mechanisms.gated_delta import GatedDelta


@final
@explain_arguments
class GatedDeltaNet(ScanMixer):
    """The gated delta rule between short convolutions and a gated norm.

    Args:
        width: size of input and output tokens.
        heads: number of heads of values.
        key_heads: number of heads of queries and keys, a divisor of ``heads``; None is ``heads``.
        head_dim: size of a head of queries and keys.
        value_dim: size of a head of values; None is ``head_dim``.
        kernel: tokens that the convolution spans.
        epsilon: added to the mean square in the norm.
        impl: of the mechanism: "auto", "native" or "reference".

    ``load_state_dict`` also takes the weights of transformers' ``Qwen3NextGatedDeltaNet``.
    """

    inputs = ("beta", "decay")
    stored_names = MappingProxyType(
        {
            "conv1d.weight": "convolution.weight",
            "A_log": "mechanism.log_rate",
            "dt_bias": "mechanism.decay_bias",
            "norm.weight": "norm_weight",
            "out_proj.weight": "output_projection.weight",
        }
    )
    fused_names = MappingProxyType({"in_proj_qkvz": ("query", "key", "value", "gate"), "in_proj_ba": ("beta", "decay")})
    fuses_heads = True

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_dim: int,
        key_heads: int | None = None,
        value_dim: int | None = None,
        kernel: int = 4,
        epsilon: float = 1e-6,
        impl: str = "auto",
    ) -> None:
        key_heads, value_dim = heads if key_heads is None else key_heads, head_dim if value_dim is None else value_dim
        check_sizes(width=width, heads=heads, key_heads=key_heads, head_dim=head_dim, value_dim=value_dim)
        check_divides("key_heads", key_heads, heads)
        check_number("epsilon", epsilon, minimum=0.0)
        key_width, value_width = key_heads * head_dim, heads * value_dim
        check_weights(width=width, channels=max(key_width, value_width))
        mechanism = GatedDelta(heads=heads, head_dim=head_dim, impl=impl)
        super().__init__(
            width,
            mechanism,
            heads=heads,
            key_heads=key_heads,
            head_dim=head_dim,
            value_dim=value_dim,
            kernel=kernel,
            epsilon=epsilon,
        )
        self.query_projection = nn.Linear(width, key_width, bias=False)
        self.key_projection = nn.Linear(width, key_width, bias=False)
        self.value_projection = nn.Linear(width, value_width, bias=False)
        self.gate_projection = nn.Linear(width, value_width, bias=False)
        self.beta_projection = nn.Linear(width, heads, bias=False)
        self.decay_projection = nn.Linear(width, heads, bias=False)
        self.norm_weight = nn.Parameter(torch.ones(value_dim))
        self.output_projection = nn.Linear(value_width, width, bias=False)

    def finish(
        self,
        mixed: Float[Tensor, "batch heads length value_dim"],
        value: Float[Tensor, "batch heads length value_dim"],
        tokens: Float[Tensor, "batch length width"],
    ) -> Float[Tensor, "batch length width"]:
        """Normalize each head, multiply it by the activated gate, and project."""
        del value
        gate = self.gate_projection(tokens).unflatten(-1, (self.heads, self.value_dim))
        normed = rms_norm(mixed.transpose(1, 2), self.epsilon) * self.norm_weight * activate(gate, "silu")
        output: Tensor = self.output_projection(normed.flatten(2))
        return output
