"""The gated delta net: the layer of Qwen3-Next in which most of its attention layers are replaced by a delta rule.

    q, k, v = silu(convolution(W_q x, W_k x, W_v x)),    o = gated_delta(q, k, v, beta = W_b x, decay = W_a x)
    output = W_o (w norm(o) silu(W_z x))

Yang, Kautz and Hatamizadeh 2025, "Gated delta networks", section 3.4 and figure 1, as in Qwen3-Next: the norm is the
root mean square of a head, with one weight for each of its channels, and queries and keys may have fewer heads than
values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import OptionError, check_number, check_sizes, check_weights
from regard.kernels.operators.activation_op import activate
from regard.layers.scan_mixer import ScanMixer, rms_norm
from regard.layers.short_convolution import ShortConvolution
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
        check_number("epsilon", epsilon, least=0.0)
        key_width, value_width = key_heads * head_dim, heads * value_dim
        check_weights(width=width, channels=max(key_width, value_width))
        mechanism = GatedDelta(heads=heads, head_dim=head_dim, impl=impl)
        super().__init__(width, mechanism, ShortConvolution(2 * key_width + value_width, kernel))
        self.heads, self.key_heads, self.head_dim, self.value_dim = heads, key_heads, head_dim, value_dim
        self.epsilon = epsilon
        self.query_projection = nn.Linear(width, key_width, bias=False)
        self.key_projection = nn.Linear(width, key_width, bias=False)
        self.value_projection = nn.Linear(width, value_width, bias=False)
        self.gate_projection = nn.Linear(width, value_width, bias=False)
        self.beta_projection = nn.Linear(width, heads, bias=False)
        self.decay_projection = nn.Linear(width, heads, bias=False)
        self.norm_weight = nn.Parameter(torch.ones(value_dim))
        self.output_projection = nn.Linear(value_width, width, bias=False)
        nn.Module.register_load_state_dict_pre_hook(self, _rename_qwen3_next)

    def project(self, tokens: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch length channels"]:
        """Compute the queries, keys and values of all heads."""
        projections = (self.query_projection, self.key_projection, self.value_projection)
        return torch.cat([projection(tokens) for projection in projections], dim=-1)

    def split_heads(
        self, convolved: Float[Tensor, "batch length channels"], tokens: Float[Tensor, "batch length width"]
    ) -> dict[str, Tensor]:
        """Split into heads; each head of queries and keys serves several heads of values."""
        key_width = self.key_heads * self.head_dim
        query, key, value = convolved.split([key_width, key_width, self.heads * self.value_dim], dim=-1)
        query, key = (
            side.unflatten(-1, (self.key_heads, self.head_dim)).repeat_interleave(self.heads // self.key_heads, dim=2)
            for side in (query, key)
        )
        value = value.unflatten(-1, (self.heads, self.value_dim))
        beta, decay = (one(tokens).transpose(1, 2)[..., None] for one in (self.beta_projection, self.decay_projection))
        query, key, value = (side.transpose(1, 2) for side in (query, key, value))
        return {"query": query, "key": key, "value": value, "beta": beta, "decay": decay}

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


def check_divides(name: str, number: int, heads: int) -> None:
    """Raise OptionError unless the number divides the heads."""
    if heads % number:
        raise OptionError(
            f"{name} does not divide heads",
            expected=f"a divisor of {heads}",
            got=str(number),
            do=f"for example {name}={heads}",
        )


_NAMES: Mapping[str, str] = {
    "conv1d.weight": "convolution.weight",
    "A_log": "mechanism.log_rate",
    "dt_bias": "mechanism.decay_bias",
    "norm.weight": "norm_weight",
    "out_proj.weight": "output_projection.weight",
}


def _rename_qwen3_next(module: GatedDeltaNet, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Rename the weights of a ``Qwen3NextGatedDeltaNet``, and split those that are fused for each head of keys."""
    for old, new in _NAMES.items():
        if prefix + old in state:
            state[prefix + new] = state.pop(prefix + old)
    group = module.heads // module.key_heads
    values = group * module.value_dim
    fused = {
        "in_proj_qkvz.weight": {"query": module.head_dim, "key": module.head_dim, "value": values, "gate": values},
        "in_proj_ba.weight": {"beta": group, "decay": group},
    }
    for old, parts in fused.items():
        weight = state.pop(prefix + old, None)
        if weight is None:
            continue
        by_head = weight.unflatten(0, (module.key_heads, -1)).split(list(parts.values()), dim=1)
        for name, part in zip(parts, by_head, strict=True):
            state[f"{prefix}{name}_projection.weight"] = part.flatten(0, 1)
