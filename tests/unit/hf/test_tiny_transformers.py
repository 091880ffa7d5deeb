"""Configs of ``transformers`` are shrunk by the names of their fields."""

from __future__ import annotations

import dataclasses

import torch
import transformers

from tiny_transformers import VOCAB, build_tiny, draw_ids, shrink


@dataclasses.dataclass(repr=False)
class FutureConfig(transformers.PreTrainedConfig):
    """Of a type that ``transformers`` does not have: a dense layer, then experts; every third layer sees all tokens."""

    model_type = "future"
    vocab_size: int = 151_936
    hidden_size: int = 5120
    intermediate_size: int = 17_408
    num_hidden_layers: int = 40
    num_attention_heads: int = 64
    num_key_value_heads: int = 8
    head_dim: int | None = None
    n_routed_experts: int = 256
    num_experts_per_tok: int = 8
    sliding_window: int = 4096
    kv_lora_rank: int = 512
    image_token_id: int = 151_800
    router_scaling_factor: int = 20
    layer_types: list[str] | None = None
    mlp_layer_types: list[str] | None = None

    def __post_init__(self, **others):
        self.head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        kinds = ["full_attention" if layer % 3 == 2 else "sliding_attention" for layer in range(40)]
        self.layer_types = self.layer_types or kinds
        self.mlp_layer_types = self.mlp_layer_types or ["dense"] + ["sparse"] * 39
        super().__post_init__(**others)


def test_a_new_type_needs_no_edit():
    small = shrink(FutureConfig, sliding_window=5)
    heads = small.num_attention_heads, small.num_key_value_heads, small.head_dim
    assert (*heads, small.hidden_size, small.sliding_window) == (4, 2, 8, 32, 5)
    assert small.layer_types == ["sliding_attention", "sliding_attention", "full_attention"]
    assert (small.num_hidden_layers, small.mlp_layer_types) == (3, ["dense", "sparse", "sparse"])
    assert (small.n_routed_experts, small.num_experts_per_tok, small.router_scaling_factor) == (4, 2, 20)
    assert small.intermediate_size < 50
    assert small.kv_lora_rank < 20
    assert small.image_token_id < small.vocab_size == VOCAB


def test_a_small_model_reads_texts():
    model = build_tiny("qwen3_moe")
    with torch.no_grad():
        logits = model(draw_ids(2, 5)).logits
    assert logits.shape == (2, 5, VOCAB)
    assert sum(parameter.numel() for parameter in model.parameters()) < 100_000
