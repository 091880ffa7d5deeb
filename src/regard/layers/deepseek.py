"""Conversion of an attention layer of DeepSeek-V2 or -V3 from ``transformers`` to ``LatentAttention``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from torch import nn

from regard.arguments import explain_arguments
from regard.errors import OptionError, RefusedError, short_repr
from regard.layers.latent import LatentAttention
from regard.positions.rotary import Rotary
from regard.positions.scaling import LinearScaling, Scaling, YarnScaling

_NAMES = {
    "q_proj": "query_projection",
    "q_a_proj": "query_down",
    "q_a_layernorm": "query_norm",
    "q_b_proj": "query_projection",
    "kv_a_proj_with_mqa": "latent_down",
    "kv_a_layernorm": "latent_norm",
    "kv_b_proj": "latent_up",
    "o_proj": "output_projection",
}


@explain_arguments
def latent_attention_from_deepseek(module: nn.Module) -> LatentAttention:
    """Convert an attention layer of DeepSeek-V2 or -V3 to the same layer, with copies of its weights.

    Its config says how positions are rotated: by pairs or by halves (``rope_interleave``), and with which scaling.
    With YaRN the factors ``mscale`` and ``mscale_all_dim`` are in the rotation, and in the scale of the scores. Raises
    OptionError for another layer, and RefusedError for a scaling other than "default", "linear" and "yarn".
    """
    config: Any = getattr(module, "config", None)
    if not isinstance(module, nn.Module) or not hasattr(config, "kv_lora_rank") or not hasattr(module, "kv_b_proj"):
        raise OptionError(
            "this is not an attention layer of DeepSeek",
            expected="a DeepseekV2Attention or DeepseekV3Attention of transformers",
            got=type(module).__name__,
            do="pass the attention layer itself, such as model.model.layers[0].self_attn",
        )
    base, scaling = _read_rotation(config)
    rotary_dim = config.qk_rope_head_dim
    layout: Literal["pairs", "halves"] = "pairs" if getattr(config, "rope_interleave", True) else "halves"
    layer = LatentAttention(
        config.hidden_size,
        config.num_attention_heads,
        latent_dim=config.kv_lora_rank,
        rotary_dim=rotary_dim,
        head_dim=config.qk_nope_head_dim,
        value_dim=config.v_head_dim,
        query_latent_dim=config.q_lora_rank,
        position=Rotary(rotary_dim, base=base, layout=layout, scaling=scaling) if rotary_dim else None,
        scale=_scale_of(config),
        bias=bool(config.attention_bias),
        epsilon=_epsilon_of(module),
        dropout=float(config.attention_dropout or 0.0),
    )
    state = {_rename(name): tensor for name, tensor in module.state_dict().items()}
    layer.to(state["latent_up.weight"])
    layer.load_state_dict(state)
    return layer.train(module.training)


def _rename(name: str) -> str:
    part, _, rest = name.partition(".")
    return f"{_NAMES.get(part, part)}.{rest}"


def _epsilon_of(module: nn.Module) -> float:
    """Return the epsilon of the norm of latents; its norms do not take the epsilon of the config."""
    return float(getattr(module.kv_a_layernorm, "variance_epsilon", 1e-6))


def _rotary_parameters(config: Any) -> Mapping[str, Any]:
    parameters = config.rope_parameters
    return parameters if isinstance(parameters, Mapping) else {}


def _scale_of(config: Any) -> float:
    """Return the factor of the scores: 1/sqrt(size of a query), times YaRN's factor for all dimensions, squared."""
    size, parameters = config.qk_nope_head_dim + config.qk_rope_head_dim, _rotary_parameters(config)
    over_all = parameters.get("mscale_all_dim") if parameters.get("rope_type", "default") != "default" else None
    return float(size**-0.5 * (_mscale(parameters["factor"], over_all) ** 2 if over_all else 1.0))


def _read_rotation(config: Any) -> tuple[float, Scaling | None]:
    """Return the base of the rotary frequencies, and their scaling."""
    parameters = _rotary_parameters(config)
    base, kind = float(parameters.get("rope_theta", 10000.0)), parameters.get("rope_type", "default")
    if kind == "default":
        return base, None
    if kind == "linear":
        return base, LinearScaling(parameters["factor"])
    if kind == "yarn" and parameters.get("truncate", True):
        trained, factor = parameters["original_max_position_embeddings"], parameters["factor"]
        mscale, over_all = parameters.get("mscale"), parameters.get("mscale_all_dim")
        given = parameters.get("attention_factor")
        quotient = _mscale(factor, mscale) / _mscale(factor, over_all) if mscale and over_all else _mscale(factor, 1.0)
        return base, YarnScaling(
            factor,
            trained,
            fast=parameters.get("beta_fast") or 32.0,
            slow=parameters.get("beta_slow") or 1.0,
            magnitude_factor=quotient if given is None else given,
        )
    raise RefusedError(
        f"rotary scaling {short_repr(kind)} of a DeepSeek model is not supported",
        expected='rope_type "default", "linear", or "yarn" with truncate=True',
        got=short_repr(dict(parameters)),
        do="build LatentAttention with a position of your own, and load its weights by name",
    )


def _mscale(factor: float, multiplier: float) -> float:
    """YaRN's factor for texts ``factor`` times as long as in training: 0.1 multiplier ln(factor) + 1."""
    return 0.1 * multiplier * math.log(factor) + 1.0 if factor > 1 else 1.0
