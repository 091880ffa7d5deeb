"""The model types that ``Llama`` covers, and what the config.json of each can say.

    llama         rotary positions, grouped queries, RMS norm before each sublayer, gated feed-forward (SwiGLU)
    mistral       and a window in every layer
    qwen2         and biases of queries, keys and values
    qwen3         norms of queries and keys instead of biases
    phi3          fused weights, LongRoPE, rotation of a part of each head
    gemma2        GELU, norms on both sides of a sublayer, scaled embedding, windows in every second layer, softcaps
    gemma3_text   norms of queries and keys instead of softcaps, two bases of the rotation
    gpt_oss       sinks, biases, windows in every second layer, YaRN, a mixture of experts
    regard-llama  any causal mechanism in each layer; ``transformers`` has no such type

``llama_config`` names the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import final

from regard.models.config_file import ConfigFile
from regard.models.rotary_config import RotaryConfig

WINDOW = "sliding_attention"
FULL = "full_attention"
"""Hugging Face's names of the types of layers."""


@final
@dataclass(frozen=True)
class ModelType:
    """The hyperparameters that the config.json of a model type can store.

    Args:
        architecture: the class in ``transformers``, or here.
        fixed: hyperparameters that the type has, by name; all others of ``PLAIN`` have the value there.
        free: names of ``PLAIN`` that a file of this type may set.
        has_window: for a type whose files do not list them, the layers with a window.
        window: the default size of the window; None is none.
        tied: the default of "tie_word_embeddings".
        head_dim: the default of "head_dim"; None is width / heads.
        key_value_heads: the default of "num_key_value_heads"; None is the number of heads.
        activation_field: the field of the activation.
        base: the default base of the rotation.
        rope: the default fields of the rotation.
        epsilon: the default of "rms_norm_eps".
        fused: whether queries, keys and values are one weight, and gate and up another.
    """

    architecture: str
    fixed: Mapping[str, object] = field(default_factory=dict)
    free: frozenset[str] = frozenset()
    has_window: Callable[[ConfigFile, int], bool] | None = None
    window: int | None = None
    tied: bool = False
    head_dim: int | None = None
    key_value_heads: int | None = None
    activation_field: str = "hidden_act"
    base: float = 10000.0
    rope: Mapping[str, object] = field(default_factory=dict)
    epsilon: float = 1e-6
    fused: bool = False


PLAIN: Mapping[str, object] = {
    "query_key_norm": False,
    "sandwich_norms": False,
    "norm_offset": 0.0,
    "scale": None,
    "scale_embedding": False,
    "logit_softcap": None,
    "softcap": None,
    "sinks": False,
    "experts": None,
    "chosen_experts": None,
    "attention_bias": False,
    "output_bias": False,
    "feed_forward_bias": False,
    "windows": (),
    "window_rotary": None,
    "mechanisms": (),
    "mechanism_options": {},
}
OWN_TYPE = "regard-llama"
"""The type of models that ``transformers`` has no class for."""
_GEMMA = {"sandwich_norms": True, "norm_offset": 1.0, "scale_embedding": True}
_GPT_OSS_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_BIASES = frozenset({"attention_bias", "output_bias"})

MODEL_TYPES: Mapping[str, ModelType] = {
    "llama": ModelType("LlamaForCausalLM", free=_BIASES | {"feed_forward_bias"}),
    "mistral": ModelType(
        "MistralForCausalLM",
        free=frozenset({"windows"}),
        has_window=lambda config, layer: True,
        window=4096,
        key_value_heads=8,
    ),
    "qwen2": ModelType(
        "Qwen2ForCausalLM",
        fixed={"attention_bias": True},
        free=frozenset({"windows"}),
        has_window=lambda config, layer: layer >= _read_first_window(config),
        window=4096,
    ),
    "qwen3": ModelType(
        "Qwen3ForCausalLM",
        fixed={"query_key_norm": True},
        free=_BIASES | {"windows"},
        has_window=lambda config, layer: layer >= _read_first_window(config),
        window=4096,
        head_dim=128,
    ),
    "phi3": ModelType(
        "Phi3ForCausalLM",
        free=frozenset({"windows"}),
        has_window=lambda config, layer: True,
        epsilon=1e-5,
        fused=True,
    ),
    "gemma2": ModelType(
        "Gemma2ForCausalLM",
        fixed=_GEMMA,
        free=_BIASES | {"windows", "scale", "softcap", "logit_softcap"},
        key_value_heads=4,
        has_window=lambda config, layer: layer % 2 == 0,
        window=4096,
        tied=True,
        head_dim=256,
        activation_field="hidden_activation",
    ),
    "gemma3_text": ModelType(
        "Gemma3ForCausalLM",
        fixed=_GEMMA | {"query_key_norm": True},
        free=_BIASES | {"windows", "window_rotary", "scale", "logit_softcap"},
        key_value_heads=4,
        has_window=lambda config, layer: (layer + 1) % config.size("sliding_window_pattern", default=6) != 0,
        window=4096,
        tied=True,
        head_dim=256,
        activation_field="hidden_activation",
        base=1_000_000.0,
    ),
    "gpt_oss": ModelType(
        "GptOssForCausalLM",
        fixed={"sinks": True},
        free=_BIASES | {"windows", "experts", "chosen_experts"},
        key_value_heads=8,
        has_window=lambda config, layer: layer % 2 == 0,
        window=128,
        head_dim=64,
        base=150_000.0,
        rope=_GPT_OSS_ROPE,
        epsilon=1e-5,
    ),
    OWN_TYPE: ModelType(
        "Llama", free=_BIASES | {"feed_forward_bias", "windows", "mechanisms", "mechanism_options"}, epsilon=1e-5
    ),
}
"""The model types that ``Llama`` reads and writes, by the field "model_type" in config.json."""


def _read_first_window(config: ConfigFile) -> int:
    """Read the number of layers without a window, below those with one."""
    layers = config.optional_integer("max_window_layers")
    return 28 if layers is None else layers


def read_window_rotary(config: ConfigFile, kind: ModelType, head_width: int) -> RotaryConfig:
    """Read the positions of layers with a window, whose base older files of Gemma 3 have in a field of its own."""
    field = "rope_local_base_freq"
    if config.section("rope_parameters") is None:
        return RotaryConfig(base=config.number(field, default=10000.0))
    # "rope_scaling" is for layers without a window
    own = ConfigFile({name: value for name, value in config.fields.items() if name != "rope_scaling"}, config.path)
    return RotaryConfig.from_hugging_face(
        own, head_dim=head_width, base_field=field, section=WINDOW, is_partial=kind.fused
    )


def read_windows(config: ConfigFile, kind: ModelType, layers: int) -> tuple[int | None, ...]:
    """Read the window of each layer; () if no layer has one."""
    is_switched = config.model_type.startswith("qwen")  # the other types have no such field
    if "windows" not in kind.free or (is_switched and not config.flag("use_sliding_window", default=False)):
        return ()
    size = kind.window
    if "sliding_window" in config.fields:
        size = None if config.fields["sliding_window"] is None else config.size("sliding_window")
    listed = config.layer_types(layers, (FULL, WINDOW)) if config.model_type not in ("mistral", "phi3") else None
    if listed is None:
        has = tuple(kind.has_window is not None and kind.has_window(config, layer) for layer in range(layers))
    else:
        has = tuple(layer_type == WINDOW for layer_type in listed)
    return tuple(size if has_window else None for has_window in has) if size is not None and any(has) else ()
