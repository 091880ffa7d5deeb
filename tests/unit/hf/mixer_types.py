"""Small models of ``transformers`` with linear mixers, one for each type that is compared with torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from unit.hf.model_types import TEXT, WIDE, ModelType

_GROUPED = TEXT | WIDE | {"num_key_value_heads": 2, "head_dim": 8}
_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 6,
    "layer_types": ["linear_attention", "full_attention"],
}
_EXPERTS = {
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
}
_LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}
_MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 6,
    "mamba_expand": 2,
    "mamba_chunk_size": 4,
}


def _mixer(name: str, sizes: Mapping[str, Any], *, is_fast: bool = False, **more: Any) -> ModelType:
    return ModelType(name, "mixer", "AutoModelForCausalLM", {**sizes, **more}, is_fast)


MIXER_TYPES = (
    _mixer("qwen3_next", _GROUPED | _DELTA | _EXPERTS, is_fast=True),
    _mixer("qwen3_5_text", _GROUPED | _DELTA),
    _mixer("qwen3_5_moe_text", _GROUPED | _DELTA | _EXPERTS),
    _mixer("olmo_hybrid", _GROUPED | _DELTA | {"linear_num_key_heads": 4}),
    _mixer(
        "kimi_linear",
        TEXT | WIDE | _LATENT | {"linear_head_dim": 8, "linear_num_heads": 4},
        is_fast=True,
        layer_types=["linear_attention", "full_attention"],
        mlp_layer_types=["dense", "sparse"],
    ),
    _mixer(
        "bailing_hybrid",
        TEXT | WIDE | _LATENT | {"n_group": 2, "topk_group": 1, "head_dim": 8},
        layer_types=["linear_attention", "full_attention"],
        mlp_layer_types=["dense", "sparse"],
        num_mtp_layers=0,
    ),
    _mixer(
        "mamba2",
        TEXT,
        is_fast=True,
        hidden_size=32,
        num_hidden_layers=2,
        num_heads=8,
        head_dim=8,
        state_size=6,
        n_groups=2,
        chunk_size=4,
    ),
    _mixer("bamba", _GROUPED | _MAMBA, attn_layer_indices=[1]),
    _mixer("falcon_h1", _GROUPED | _MAMBA, mamba_d_ssm=64),
    _mixer(
        "granitemoehybrid",
        _GROUPED | _MAMBA,
        num_local_experts=3,
        num_experts_per_tok=2,
        shared_intermediate_size=24,
        layer_types=["mamba", "attention"],
    ),
    _mixer(
        "nemotron_h",
        _GROUPED,
        layers_block_type=["mamba", "attention", "mlp"],
        mamba_num_heads=8,
        mamba_head_dim=8,
        ssm_state_size=6,
        n_groups=2,
        chunk_size=4,
    ),
    _mixer(
        "zamba2",
        TEXT | WIDE,
        layers_block_type=["mamba", "hybrid"],
        n_mamba_heads=8,
        mamba_d_state=6,
        mamba_ngroups=2,
        chunk_size=4,
        num_key_value_heads=4,
        adapter_rank=5,
    ),
    _mixer(
        "minimax",
        _GROUPED,
        num_local_experts=3,
        num_experts_per_tok=2,
        # If the first layer is linear, transformers counts no tokens in its cache, so that positions are wrong.
        layer_types=["full_attention", "linear_attention"],
        block_size=4,
    ),
)
"""Model types whose mixers call one of ``regard.hf.scan_replacement.FUNCTIONS``."""

CLAIMS: Mapping[str, Callable[[ModelType], bool]] = {
    "training": lambda kind: True,
    "padding": lambda kind: True,
    "generation": lambda kind: True,
    "parts": lambda kind: True,
}
"""For each column of the table of linear mixers, the model types for which the suite proves it."""
