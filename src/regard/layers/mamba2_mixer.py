"""The mixer of Mamba-2: a selective state space between a short convolution and a gated norm, without attention.

    x, B, C = silu(convolution(W_x u, W_B u, W_C u)),    y = mamba2(query C, key B, value x, time_step = W_dt u) + D x
    output = W_o (w norm(y silu(W_z u)))

Dao and Gu 2024, "Transformers are SSMs", section 7.1 and figure 6. B and C are shared by the heads of a group, and the
norm divides by the root mean square of a group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import check_flag, check_number, check_sizes, check_weights
from regard.kernels.operators.activation_op import activate
from regard.layers.scan_mixer import ScanMixer, check_divides, rms_norm
from regard.mechanisms.mamba2 import Mamba2


@final
@explain_arguments
class Mamba2Mixer(ScanMixer):
    """Mamba-2 between a short convolution and a gated norm, with a skip connection.

    Args:
        width: size of input and output tokens.
        heads: number of heads of values.
        value_dim: size of a head of values; heads * value_dim is twice the width in the paper.
        state_size: size of a head of queries and keys, N in the paper.
        groups: number of heads of queries and keys, a divisor of ``heads``.
        kernel: tokens that the convolution spans.
        bias: whether the projections have a bias.
        convolution_bias: whether the convolution has one.
        epsilon: added to the mean square in the norm.
        time_step_limit: the least and the largest step (``mechanisms.Mamba2``).
        impl: of the mechanism: "auto", "native" or "reference".

    ``load_state_dict`` also takes the weights of transformers' ``Mamba2Mixer``.
    """

    inputs = ("time_step",)
    channels = ("value", "key", "query")
    stored_names = MappingProxyType(
        {
            "conv1d.weight": "convolution.weight",
            "conv1d.bias": "convolution.bias",
            "A_log": "mechanism.log_rate",
            "dt_bias": "mechanism.step_bias",
            "D": "skip",
            "norm.weight": "norm_weight",
            "out_proj.weight": "output_projection.weight",
            "out_proj.bias": "output_projection.bias",
        }
    )
    fused_names = MappingProxyType({"in_proj": ("gate", "value", "key", "query", "time_step")})

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        value_dim: int,
        state_size: int = 128,
        groups: int = 1,
        kernel: int = 4,
        bias: bool = False,
        convolution_bias: bool = True,
        epsilon: float = 1e-5,
        time_step_limit: Sequence[float] = (0.0, math.inf),
        impl: str = "auto",
    ) -> None:
        check_sizes(width=width, heads=heads, value_dim=value_dim, state_size=state_size, groups=groups)
        check_divides("groups", groups, heads)
        check_flag("bias", bias)
        check_number("epsilon", epsilon, minimum=0.0)
        value_width, group_width = heads * value_dim, groups * state_size
        check_weights(width=width, channels=max(value_width, group_width))
        mechanism = Mamba2(heads=heads, head_dim=state_size, time_step_limit=time_step_limit, impl=impl)
        super().__init__(
            width,
            mechanism,
            heads=heads,
            key_heads=groups,
            head_dim=state_size,
            value_dim=value_dim,
            kernel=kernel,
            convolution_bias=convolution_bias,
            epsilon=epsilon,
        )
        self.gate_projection = nn.Linear(width, value_width, bias=bias)
        self.value_projection = nn.Linear(width, value_width, bias=bias)
        self.key_projection = nn.Linear(width, group_width, bias=bias)
        self.query_projection = nn.Linear(width, group_width, bias=bias)
        self.time_step_projection = nn.Linear(width, heads, bias=bias)
        self.skip = nn.Parameter(torch.ones(heads))
        self.norm_weight = nn.Parameter(torch.ones(value_width))
        self.output_projection = nn.Linear(value_width, width, bias=bias)

    def finish(
        self,
        mixed: Float[Tensor, "batch heads length value_dim"],
        value: Float[Tensor, "batch heads length value_dim"],
        tokens: Float[Tensor, "batch length width"],
    ) -> Float[Tensor, "batch length width"]:
        """Add the skip connection, multiply by the activated gate, normalize each group, and project."""
        mixed = (mixed + self.skip[:, None, None] * value).transpose(1, 2).flatten(2)
        gated = mixed * activate(self.gate_projection(tokens), "silu")
        normed = rms_norm(gated.unflatten(-1, (self.key_heads, -1)), self.epsilon).flatten(2)
        output: Tensor = self.output_projection(normed * self.norm_weight)
        return output
