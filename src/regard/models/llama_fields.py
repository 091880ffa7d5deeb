"""Reading the fields of a config.json that only some types of Llama-type decoders have: ``llama_types``."""

from __future__ import annotations

from regard.models.config_file import ConfigFile
from regard.models.llama_types import FULL, WINDOW, ModelType
from regard.models.rotary_config import RotaryConfig


def read_free_fields(config: ConfigFile, kind: ModelType, head_width: int) -> dict[str, object]:
    """Read the hyperparameters that files of this type may set."""
    found: dict[str, object] = {}
    if "attention_bias" in kind.free:
        found["attention_bias"] = found["output_bias"] = config.flag(
            "attention_bias", default=config.model_type == "gpt_oss"
        )
    if "experts" in kind.free:
        found |= {"experts": config.size("num_local_experts"), "chosen_experts": config.size("num_experts_per_tok")}
    if "feed_forward_bias" in kind.free:
        found["feed_forward_bias"] = config.flag("mlp_bias", default=False)
    if "scale" in kind.free:
        found["scale"] = config.size("query_pre_attn_scalar", default=256) ** -0.5
    for name, written, default in (
        ("softcap", "attn_logit_softcapping", 50.0),
        ("logit_softcap", "final_logit_softcapping", 30.0),
    ):
        if name in kind.free:
            absent = default if config.model_type == "gemma2" else None
            value = config.fields.get(written, absent)
            found[name] = None if value is None else config.number(written, default=default)
    if "window_rotary" in kind.free:
        found["window_rotary"] = _read_window_rotary(config, kind, head_width)
    return found


def _read_window_rotary(config: ConfigFile, kind: ModelType, head_width: int) -> RotaryConfig:
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
    if kind.has_window is None or (is_switched and not config.flag("use_sliding_window", default=False)):
        return ()
    size = kind.window
    if "sliding_window" in config.fields:
        size = None if config.fields["sliding_window"] is None else config.size("sliding_window")
    listed = config.layer_types(layers, (FULL, WINDOW)) if config.model_type not in ("mistral", "phi3") else None
    if listed is None:
        has = tuple(kind.has_window(config, layer) for layer in range(layers))
    else:
        has = tuple(one == WINDOW for one in listed)
    return tuple(size if one else None for one in has) if size is not None and any(has) else ()
