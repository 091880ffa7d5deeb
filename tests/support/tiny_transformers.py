"""Small models of ``transformers`` with random weights, made from any config class by program.

``shrink`` makes a small config: each size follows from the name of its field (``_SIZES``), and there is one layer of
each kind. So a type of a new version of ``transformers`` needs no edit; ``_EXCEPTIONS`` has the sizes of single types
that fit together in another way.

    for name, family in find_text_types().items():
        model = build_tiny(name)          # AutoModelForCausalLM, ..MaskedLM or ..Seq2SeqLM, as the family says
        model(input_ids=draw_ids(2, 13))
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCAB = 97
FIRST_SPECIAL_ID = 81
"""Ids from here on are those of special tokens, such as images in a text."""
_LAYERS = re.compile(r"(num_(hidden_)?|n_)layers?|(num_)?(encoder|decoder)_layers|num_blocks|depth")
_KEPT, _SPECIAL, _COUNT, _SHARED = "as it is", "id of a special token", "number of layers", "heads of keys"
_SIZES: tuple[tuple[str, Any], ...] = (
    # Numbers that are no sizes.
    (r".*(theta|scale|scaling|factor|coef|ratio|multiplier|temperature|rate|strides?|kernel_sizes?|probs?)", _KEPT),
    (r"scale.*|.*(_iters|_cycles|_offset|_base|_freq|seed|pretraining_tp|chunk_size_feed_forward)", _KEPT),
    (r"query_pre_attn_scalar", 8),
    # Ids of tokens.
    (r".*num_buckets", _KEPT),  # some types have the number in their code, too
    (r"pad_token_id|.*_pad_token_id|pad_index", 0),
    (r"bos_token_id|.*(bos|start)_token_id|bos_index", 1),
    (r"eos_token_id|.*_eos_token_id|eos_index", 2),
    (r".*(_token_ids?|_token_index|_index|_tokens)", _SPECIAL),
    # Text.
    (r".*vocab_sizes?|.*vocab_size_.*|.*group_vocab", VOCAB),
    (r".*(max_position|position_embeddings|source_positions|target_positions).*|n_positions|n_ctx|max_seq_len", 128),
    (r"context_length|model_max_length|max_length", 128),
    # Layers.
    (_LAYERS.pattern, _COUNT),
    (r".*num_.*layers|.*_layers|num_hidden_groups", 2),
    # Heads.
    (r".*(num|n)_(key_value|kv|group)_heads|.*num_query_groups", _SHARED),
    (r".*linear_num_value_heads", 4),
    (r".*linear_num_key_heads", _SHARED),
    (r"index_n_heads", 2),
    (r"mamba_(num|n)_heads|n_mamba_heads|mamba_n_heads", 8),
    (r".*(num|n)_(.*_)?heads?|.*attention_heads", 4),
    (r".*rope_head_dim|rotary_dim", 4),
    (r"qk_head_dim", 12),
    (r".*head_?dim|d_kv|dim_head|d_head|.*head_size|kv_channels|mamba_d_head", 8),
    # Experts.
    (r".*(experts_per_tok|experts_per_token|moe_top_?k|moe_k|top_k_experts)", 2),
    (r".*shared_experts?|.*num_shared.*", _KEPT),
    (r".*(num|n)_(local_|routed_)?experts|moe_num_experts", 4),
    (r"n_group|num_expert_group", 2),
    (r"topk_group", 1),
    # Windows, blocks and states.
    (r".*sliding_window(_size)?|attention_window(_size)?|.*window_len|local_attention|keep_window_size", 6),
    (r".*(chunk_size|chunk_length|block_size)", 4),
    (r"index_topk", 5),
    (r"index_topk_blocks", 2),
    (r".*(lora_rank|lowrank|_rank)", 12),
    (r".*state_size|.*d_state", 6),
    (r".*n_?groups", _KEPT),
    (r"max_window_layers", 1),
    # Widths.
    (r".*(intermediate|ffn|inner|mlp|ff|feed_forward).*", 40),
    (r".*hidden_sizes?|d_model|n_embd|.*(emb|embed|embedding|lru|proj|model)_(dim|size|width)s?|dim|lru_width", 32),
    (r"time_step_rank|mamba_dt_rank", 4),
)
"""What a size becomes, by the name of its field; the first row that matches counts. Others are limited to 16."""

_EXCEPTIONS: Mapping[str, Mapping[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            layer: {"rope_type": "default", "rope_theta": 10_000.0} for layer in ("sliding_attention", "full_attention")
        },
    },
    "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10_000.0}},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 2, "topk_group": 1},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note_text": {
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4,
        "swa_q_lora_rank": 12,
        "swa_kv_lora_rank": 12,
        "swa_head_dim": 12,
        "swa_qk_nope_head_dim": 8,
        "swa_v_head_dim": 8,
    },
    "esm": {"vocab_size": VOCAB, "pad_token_id": 0, "mask_token_id": 3},
    "esmc": {"vocab_size": VOCAB},
    "falcon_h1": {"mamba_d_ssm": 64},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "attention_layers": ["global", "local"]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"head_dim": 4},
    "mamba2": {"num_heads": 8},
    "minimax_m3_vl_text": {"layer_types": ["minimax_m3_sparse", "full_attention"]},
    "mobilebert": {"embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32},
    "neomme": {"head_dim": 16},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 4,
        "indexer_compress_ratio": 2,
    },
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "xlstm": {"hidden_size": 64, "chunk_size": 64, "qk_dim_factor": 1.0},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
}
"""Sizes of single types, which fit together in another way, or which default to a model without attention."""


_UNDECIDED = {"head_dim": 8, "num_key_value_heads": 2}
"""Sizes of fields that are None in some default configs, which then build no model."""


def shrink(
    config: type[transformers.PreTrainedConfig] | transformers.PreTrainedConfig, **sizes: Any
) -> transformers.PreTrainedConfig:
    """Make a small config of a class: width 32, 4 heads of 8, one layer of each kind, and at least two.

    A config in place of the class gives the kinds of layers, and everything that is no size. ``sizes`` replace what
    follows from the names of the fields.
    """
    default = config() if isinstance(config, type) else config
    kind: Any = type(default)
    layers = _choose_layers(default)
    # Attributes that are no fields, and fields whose default is None, are derived from other fields by the class.
    fields = {field.name for field in dataclasses.fields(kind)}
    fields |= {kind.attribute_map[name] for name in fields & kind.attribute_map.keys()}
    small: dict[str, Any] = {}
    for name, value in vars(default).items():
        is_derived = name not in fields or getattr(kind, name, ...) is None
        if isinstance(value, transformers.PreTrainedConfig):
            small[name] = shrink(value)
        elif name.startswith("_") or name in _NO_SIZES or name not in fields:
            continue
        elif isinstance(value, (list, tuple)):
            small[name] = _shrink_list(name, value, layers, default)
        elif isinstance(value, dict) and "rope" in name and (not is_derived or "mrope_section" in str(value)):
            small[name] = _shrink_rope(value)
        elif _is_size(value) and not is_derived:
            small[name] = _shrink_size(name, value, default, layers)
    if "mrope_section" in getattr(kind, "ignore_keys_at_rope_validation", ()) and "rope_parameters" not in small:
        small["rope_parameters"] = _shrink_rope(dict(default.rope_parameters or {}) | {"mrope_section": []})
    special = (name for name, value in small.items() if value == _SPECIAL)
    small |= {name: FIRST_SPECIAL_ID + number for number, name in enumerate(special)}
    small |= {name: size for name, size in _UNDECIDED.items() if vars(default).get(name, ...) is None}
    return cast("transformers.PreTrainedConfig", kind(**{**small, **_EXCEPTIONS.get(default.model_type, {}), **sizes}))


_NO_SIZES = ("id2label", "label2id", "transformers_version", "dtype")


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _choose_layers(default: Any) -> list[int]:
    """The layers to keep: the first of each kind, and at least two."""
    count = _count_layers(default)
    lists = [values for name, values in vars(default).items() if _is_per_layer(name, values, count)]
    kinds: dict[Any, int] = {}
    for layer in range(count):
        kinds.setdefault(tuple(str(values[layer]) for values in lists), layer)
    chosen = sorted(kinds.values())
    return chosen if len(chosen) > 1 else list(range(min(2, count)))


def _count_layers(default: Any) -> int:
    if isinstance(getattr(default, "num_hidden_layers", None), int):
        return int(default.num_hidden_layers)
    counts = (value for name, value in vars(default).items() if _LAYERS.fullmatch(name) and isinstance(value, int))
    return next(counts, 2)


def _is_per_layer(name: str, values: Any, count: int) -> bool:
    return isinstance(values, (list, tuple)) and len(values) == count and not _are_layer_numbers(name, values)


def _are_layer_numbers(name: str, values: Sequence[Any]) -> bool:
    """Whether a list holds the numbers of the layers of some kind."""
    is_named_so = re.fullmatch(r".*(_idxs|_indices|_indexes|_ids|_layers)", name) is not None
    return is_named_so and all(isinstance(value, int) for value in values) and sorted(set(values)) == list(values)


def _shrink_list(name: str, values: Sequence[Any], layers: list[int], default: Any) -> Any:
    if _are_layer_numbers(name, values) and not name.endswith("token_ids"):
        return [layers.index(value) for value in values if value in layers]
    kept: Sequence[Any] = values
    if _is_per_layer(name, values, _count_layers(default)):
        name, kept = name.removesuffix("_per_layer"), [values[layer] for layer in layers]
    if kept and all(map(_is_size, kept)):
        small = [_shrink_size(name, value, default, layers) for value in kept]
        kept = type(values)(FIRST_SPECIAL_ID if value == _SPECIAL else value for value in small)
    return kept


def _shrink_rope(parameters: dict[str, Any]) -> dict[str, Any]:
    """Rotary parameters for heads of 8: sections of multi-axis positions have 4 pairs, or a part of them."""
    small: dict[str, Any] = {}
    sections = [1, 1, 0] if parameters.get("partial_rotary_factor", 1) <= 0.5 else [2, 1, 1]
    for name, value in parameters.items():
        if isinstance(value, dict):
            small[name] = _shrink_rope(value)
        elif name == "mrope_section":
            small[name] = sections
        else:
            small[name] = value
    return small


def _shrink_size(name: str, value: int, default: Any, layers: list[int]) -> Any:
    for pattern, size in _SIZES:
        if not re.fullmatch(pattern, name):
            continue
        if size == _KEPT or value <= 0:
            return value
        if size == _COUNT:
            return len(layers)
        if size == _SHARED:
            return _share_heads(name, value, default)
        return size if size == _SPECIAL else min(size, value)
    return min(value, 16)


def _share_heads(name: str, value: int, default: Any) -> int:
    """Heads of keys: 1, half of the heads, or all of them, as by default."""
    whole = vars(default).get(
        name.replace("key_value", "attention"), vars(default).get("linear_num_value_heads", value)
    )
    return 1 if value == 1 else 4 if value == whole else 2


_FAMILIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "decoder": ("AutoModelForCausalLM", modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
    "encoder": ("AutoModelForMaskedLM", modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
    "seq2seq": ("AutoModelForSeq2SeqLM", modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES),
}
"""The class that builds the models of a family, and the types that it knows."""
_OTHER_MEDIA = (
    modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES,
)


@functools.cache
def find_text_types() -> Mapping[str, str]:
    """The types of models of texts alone, and the family of each: "decoder", "encoder" or "seq2seq".

    A type of several families has the last of these that it belongs to.
    """
    found: dict[str, str] = {}
    for family in ("decoder", "encoder", "seq2seq"):
        found |= dict.fromkeys(_FAMILIES[family][1], family)
    media = {name for names in _OTHER_MEDIA for name in names}
    return {name: found[name] for name in sorted(found) if name not in media and not _has_parts(name)}


def _has_parts(name: str) -> bool:
    """Whether a model of the type is composed of others, such as one for pictures or sounds."""
    parts = CONFIG_MAPPING[name].sub_configs
    return any(part.startswith(("vision", "audio", "encoder")) for part in parts) and "decoder" not in parts


def build_tiny(name: str, *, auto: str | None = None, implementation: str = "eager", **sizes: Any) -> Any:
    """Build a small model of a type with random weights, in evaluation mode."""
    config = shrink(CONFIG_MAPPING[name], **sizes)
    if name == "encoder-decoder":  # whose own builder says so to any decoder
        config.decoder.is_decoder = config.decoder.add_cross_attention = True
    auto = auto or _FAMILIES[find_text_types()[name]][0]
    with torch.random.fork_rng():
        torch.manual_seed(29)
        model = getattr(transformers, auto).from_config(config, attn_implementation=implementation)
    draw_weights(model)
    return model.eval()


def draw_weights(model: nn.Module) -> None:
    """Draw random weights, large enough that attention is far from uniform."""
    generator = torch.Generator().manual_seed(31)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("A_log"):
                # Of linear mixers: decays far below 1 make gradients of torch's scans differ by 1e-4 from float64.
                parameter.copy_(noise * 0.1)
            elif parameter.dim() > 1:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(noise * 0.1)


def draw_ids(rows: int, length: int) -> Tensor:
    """Random ids of ordinary tokens (rows, length)."""
    return torch.randint(3, FIRST_SPECIAL_ID, (rows, length), generator=torch.Generator().manual_seed(37))
