"""The mixer of Mamba-2: a selective state space between a short convolution and a gated norm, without attention.

    x, B, C = silu(convolution(W_x u, W_B u, W_C u)),    y = mamba2(query C, key B, value x, time_step = W_dt u) + D x
    output = W_o (w norm(y silu(W_z u)))

Dao and Gu 2024, "Transformers are SSMs", section 7.1 and figure 6. B and C are shared by the heads of a group, and the
norm divides by the root mean square of a group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import check_flag, check_number, check_sizes, check_weights
from regard.kernels.operators.activation_op import activate
from regard.layers.gated_delta_net import check_divides
from regard.layers.scan_mixer import ScanMixer, rms_norm
from regard.layers.short_convolution import ShortConvolution
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
        check_number("epsilon", epsilon, least=0.0)
        value_width, group_width = heads * value_dim, groups * state_size
        check_weights(width=width, channels=max(value_width, group_width))
        mechanism = Mamba2(heads=heads, head_dim=state_size, time_step_limit=time_step_limit, impl=impl)
        convolution = ShortConvolution(value_width + 2 * group_width, kernel, bias=convolution_bias)
        super().__init__(width, mechanism, convolution)
        self.heads, self.value_dim, self.state_size, self.groups = heads, value_dim, state_size, groups
        self.epsilon = epsilon
        self.gate_projection = nn.Linear(width, value_width, bias=bias)
        self.value_projection = nn.Linear(width, value_width, bias=bias)
        self.key_projection = nn.Linear(width, group_width, bias=bias)
        self.query_projection = nn.Linear(width, group_width, bias=bias)
        self.time_step_projection = nn.Linear(width, heads, bias=bias)
        self.skip = nn.Parameter(torch.ones(heads))
        self.norm_weight = nn.Parameter(torch.ones(value_width))
        self.output_projection = nn.Linear(value_width, width, bias=bias)
        nn.Module.register_load_state_dict_pre_hook(self, _rename_mamba2)

    def project(self, tokens: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch length channels"]:
        """Compute x, B and C."""
        projections = (self.value_projection, self.key_projection, self.query_projection)
        return torch.cat([projection(tokens) for projection in projections], dim=-1)

    def split_heads(
        self, convolved: Float[Tensor, "batch length channels"], tokens: Float[Tensor, "batch length width"]
    ) -> dict[str, Tensor]:
        """Split into heads; B and C serve the heads of their group."""
        group_width = self.groups * self.state_size
        value, key, query = convolved.split([self.heads * self.value_dim, group_width, group_width], dim=-1)
        query, key = (
            side.unflatten(-1, (self.groups, self.state_size)).repeat_interleave(self.heads // self.groups, dim=2)
            for side in (query, key)
        )
        value = value.unflatten(-1, (self.heads, self.value_dim))
        time_step = self.time_step_projection(tokens).transpose(1, 2)[..., None]
        query, key, value = (side.transpose(1, 2) for side in (query, key, value))
        return {"query": query, "key": key, "value": value, "time_step": time_step}

    def finish(
        self,
        mixed: Float[Tensor, "batch heads length value_dim"],
        value: Float[Tensor, "batch heads length value_dim"],
        tokens: Float[Tensor, "batch length width"],
    ) -> Float[Tensor, "batch length width"]:
        """Add the skip connection, multiply by the activated gate, normalize each group, and project."""
        mixed = (mixed + self.skip[:, None, None] * value).transpose(1, 2).flatten(2)
        gated = mixed * activate(self.gate_projection(tokens), "silu")
        normed = rms_norm(gated.unflatten(-1, (self.groups, -1)), self.epsilon).flatten(2)
        output: Tensor = self.output_projection(normed * self.norm_weight)
        return output


_NAMES: Mapping[str, str] = {
    "conv1d.weight": "convolution.weight",
    "conv1d.bias": "convolution.bias",
    "A_log": "mechanism.log_rate",
    "dt_bias": "mechanism.step_bias",
    "D": "skip",
    "norm.weight": "norm_weight",
    "out_proj.weight": "output_projection.weight",
    "out_proj.bias": "output_projection.bias",
}


def _rename_mamba2(module: Mamba2Mixer, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Rename the weights of transformers' ``Mamba2Mixer``, and split its fused projection."""
    for old, new in _NAMES.items():
        if prefix + old in state:
            state[prefix + new] = state.pop(prefix + old)
    names = ("gate", "value", "key", "query", "time_step")
    sizes = [module.get_submodule(f"{name}_projection").out_features for name in names]
    for kind in ("weight", "bias"):
        fused = state.pop(f"{prefix}in_proj.{kind}", None)
        if fused is not None:
            for name, part in zip(names, fused.split(sizes), strict=True):
                state[f"{prefix}{name}_projection.{kind}"] = part
