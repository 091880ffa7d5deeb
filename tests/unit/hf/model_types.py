"""Small models of ``transformers`` with random weights, one for each model type that the tests compare with eager.

A type belongs to a family, which says how the model is called:

    decoder    token ids, causal; generates
    mixer      the same with linear mixers in some layers or all
    encoder    token ids
    seq2seq    token ids of a source and of a target; generates
    speech     a spectrogram and token ids of a target; generates
    image      pixels
    audio      a waveform, or a spectrogram where the type says so
    pair       pixels and token ids
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tiny_transformers import VOCAB, draw_weights, shrink

TEXT = {"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WIDE = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_GROUPED = TEXT | WIDE | {"num_key_value_heads": 2, "head_dim": 8}
_BERT = TEXT | WIDE
_DEEPSEEK = (
    TEXT
    | WIDE
    | {
        "num_key_value_heads": 4,
        "kv_lora_rank": 12,
        "q_lora_rank": 14,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 6,
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 1,
    }
)
_INDEXER = {"index_topk": 5, "index_n_heads": 2, "index_head_dim": 8}
_BART = TEXT | {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
_T5 = TEXT | {"d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
_VIT = WIDE | {"image_size": 24, "patch_size": 8, "num_channels": 3}
_WAV = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "conv_dim": (16, 16),
    "conv_kernel": (5, 3),
    "conv_stride": (3, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "vocab_size": VOCAB,
    "layerdrop": 0.0,
    "mask_time_prob": 0.0,
}
_CLIP = {
    "text_config": TEXT | WIDE,
    "vision_config": _VIT,
    "projection_dim": 24,
}


@dataclass(frozen=True)
class ModelType:
    """A model type, the family that says how it is called, the class that builds it, and the sizes of a small one."""

    name: str
    family: str
    auto: str
    sizes: Mapping[str, Any] = field(repr=False)
    is_fast: bool = False
    layers: int = 2
    own_code: tuple[str, ...] = ()
    """Names of layers that do not use the interface."""
    has_static_cache: bool = True
    """Whether eager generates with a static cache that holds a window shorter than the text."""
    chooses_blocks: bool = False
    """Whether queries choose blocks of keys counted from the first place, so that with padding on the left a query may
    choose padding alone, for which the weights of eager are uniform.
    """
    takes_spectrograms: bool = False
    """Whether an audio model reads spectrograms of 16 bands, not waveforms."""
    query_norm_scale: float = 1.0
    """Factor of the weights of query norms, where the model has no factor 1 / sqrt(head_dim) of its own."""
    is_shrunk: bool = False
    """Whether the sizes are made by program, and ``sizes`` has only those that replace them."""

    def build(self, **options: Any) -> Any:
        """Build a model with random weights, large enough that attention is far from uniform."""
        import transformers

        if self.is_shrunk:
            config = shrink(transformers.CONFIG_MAPPING[self.name], **self.sizes, **options)
        else:
            config = transformers.AutoConfig.for_model(self.name, **self.sizes, **options)
        with torch.random.fork_rng():
            torch.manual_seed(29)
            model = getattr(transformers, self.auto).from_config(config, attn_implementation="eager")
        draw_weights(model)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("q_norm.weight"):
                    parameter.mul_(self.query_norm_scale)
        return model.eval()

    def inputs(self, padding: str | None = None) -> dict[str, Tensor]:
        """Make inputs of the model; ``padding`` is the side on which two of three texts are padded."""
        generator = torch.Generator().manual_seed(37)

        def texts(length: int) -> Tensor:
            return torch.randint(3, VOCAB, (3, length), generator=generator)

        def noise(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        if self.family == "image":
            return {"pixel_values": noise(2, 3, self.image_size, self.image_size)}
        if self.takes_spectrograms:
            lengths = torch.tensor([[80], [131]]) if padding else torch.tensor([[131], [131]])
            frames = torch.arange(131) < lengths
            return {"input_features": noise(2, 131, 16) * frames[..., None], "attention_mask": frames.long()}
        if self.family == "audio":
            lengths = torch.tensor([[101], [173]]) if padding else torch.tensor([[173], [173]])
            tokens = torch.arange(173) < lengths
            return {"input_values": noise(2, 173) * tokens, "attention_mask": tokens.long()}
        if self.family == "speech":
            return {"input_features": noise(2, 8, 26), "decoder_input_ids": texts(7)[:2]}
        inputs = {"input_ids": texts(13)}
        if self.family == "pair":
            inputs["pixel_values"] = noise(3, 3, self.image_size, self.image_size)
        if self.family == "seq2seq":
            inputs["decoder_input_ids"] = texts(7)
        inputs["attention_mask"] = token_mask(3, 13, padding)
        inputs["input_ids"] *= inputs["attention_mask"]
        return inputs

    @property
    def image_size(self) -> int:
        """Height and width of the pictures."""
        return int(self.sizes.get("image_size", _VIT["image_size"]))

    @property
    def generates(self) -> bool:
        """Whether the model has ``generate``."""
        return self.family in ("decoder", "mixer", "seq2seq", "speech")

    @property
    def takes_padding(self) -> bool:
        """Whether the model takes padded texts or recordings."""
        return self.family in ("decoder", "mixer", "encoder", "seq2seq", "pair", "audio")

    @property
    def pads_left(self) -> bool:
        """Whether texts may be padded on the left: not where a text is summarized at its last token, wherever it is."""
        return self.family in ("decoder", "mixer", "encoder", "seq2seq") and not self.chooses_blocks

    @property
    def returns_weights(self) -> bool:
        """Whether a model returns the weights of its layers: a pair of models has no place for them."""
        return self.family != "pair"


CLAIMS: Mapping[str, Callable[[ModelType], bool]] = {
    "training": lambda kind: True,
    "padding": lambda kind: kind.takes_padding,
    "generation": lambda kind: kind.generates and not kind.chooses_blocks,
    "static cache": lambda kind: kind.generates and kind.has_static_cache,
    "weights": lambda kind: kind.returns_weights,
}
"""For each column of the table, the model types for which the suite proves it."""


def token_mask(batch: int, length: int, padding: str | None) -> Tensor:
    """1 for tokens and 0 for padding: 5 and 2 tokens of the first two texts on the side ``padding``."""
    mask = torch.ones(batch, length, dtype=torch.long)
    for text, hidden in enumerate((5, 2)[:batch] if padding else ()):
        if padding == "left":
            mask[text, :hidden] = 0
        else:
            mask[text, length - hidden :] = 0
    return mask


def _decoder(
    name: str,
    sizes: Mapping[str, Any] = _GROUPED,
    *,
    is_fast: bool = False,
    own_code: tuple[str, ...] = (),
    has_static_cache: bool = True,
    chooses_blocks: bool = False,
    query_norm_scale: float = 1.0,
    **more: Any,
) -> ModelType:
    return ModelType(
        name,
        "decoder",
        "AutoModelForCausalLM",
        {**sizes, **more},
        is_fast,
        own_code=own_code,
        has_static_cache=has_static_cache,
        chooses_blocks=chooses_blocks,
        query_norm_scale=query_norm_scale,
    )


def _shrunk(name: str, *, layers: int = 2, has_static_cache: bool = True, **sizes: Any) -> ModelType:
    """A decoder whose sizes are made by program."""
    return ModelType(
        name,
        "decoder",
        "AutoModelForCausalLM",
        sizes,
        layers=layers,
        has_static_cache=has_static_cache,
        is_shrunk=True,
    )


def _encoder(name: str, *, layers: int = 2, is_fast: bool = False, **more: Any) -> ModelType:
    return ModelType(name, "encoder", "AutoModelForMaskedLM", {**_BERT, **more}, is_fast, layers)


def _seq2seq(name: str, sizes: Mapping[str, Any], *, is_fast: bool = False) -> ModelType:
    return ModelType(name, "seq2seq", "AutoModelForSeq2SeqLM", sizes, is_fast, layers=6)


def _other(name: str, family: str, sizes: Mapping[str, Any], **more: Any) -> ModelType:
    return ModelType(name, family, "AutoModel", sizes, **more)


_WINDOWED = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
_MINIMAX_M3 = TEXT | {
    "hidden_size": 32,
    "intermediate_size": 24,
    "dense_intermediate_size": 40,
    "shared_intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rotary_dim": 8,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
    "layer_types": ["minimax_m3_sparse", "full_attention"],
    "mlp_layer_types": ["dense", "sparse"],
    "index_n_heads": 2,
    "index_head_dim": 8,
    "index_block_size": 3,
    "index_topk_blocks": 2,
}
_INKLING = TEXT | {
    "hidden_size": 32,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 16,
    "layer_types": ["hybrid_sliding", "hybrid"],
    "sliding_window_size": 5,
    "d_rel": 4,
    "rel_extent": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_layers_per_attn_res_block": 1,
    "max_position_embeddings": 64,
    "unpadded_vocab_size": VOCAB,
}
_PARAKEET = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_mel_bins": 16,
    "subsampling_conv_channels": 8,
    "conv_kernel_size": 5,
    "layerdrop": 0.0,
}
_SWIN = {
    "image_size": 32,
    "patch_size": 4,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
    "mlp_ratio": 2.0,
}

MODEL_TYPES = (
    _decoder("llama", is_fast=True),
    _decoder("mistral", sliding_window=5),
    _decoder("mixtral", num_local_experts=3, num_experts_per_tok=2, sliding_window=None),
    _decoder("qwen2", use_sliding_window=True, sliding_window=5, max_window_layers=1),
    _decoder("qwen3"),
    _decoder("qwen3_moe", num_experts=3, num_experts_per_tok=2, moe_intermediate_size=24),
    _decoder("gemma"),
    _decoder("gemma2", is_fast=True, query_pre_attn_scalar=8, **_WINDOWED),
    _decoder("gemma3_text", query_pre_attn_scalar=8, **_WINDOWED),
    # Gemma 4 has no factor of the scores, so its trained query norms are as small. Large ones amplify rounding.
    _decoder("gemma4_text", query_norm_scale=8**-0.5, hidden_size_per_layer_input=0, **_WINDOWED),
    _decoder("gpt_oss", is_fast=True, num_local_experts=3, num_experts_per_tok=2, **_WINDOWED),
    _decoder("phi"),
    _decoder("phi3"),
    _decoder("stablelm"),
    _decoder("starcoder2", sliding_window=5),
    _decoder("cohere"),
    _decoder("cohere2", **_WINDOWED),
    _decoder("olmo2"),
    _decoder("granite"),
    _decoder("smollm3"),
    _decoder("glm"),
    _decoder("nemotron"),
    _decoder("helium"),
    _decoder("exaone4", **_WINDOWED),
    _decoder("opt", TEXT | WIDE, ffn_dim=40, word_embed_proj_dim=32),
    _decoder("gpt_neox", TEXT | WIDE),
    _decoder("gpt2", TEXT, n_embd=32, n_layer=2, n_head=4, n_positions=64, is_fast=True),
    _decoder("deepseek_v3", _DEEPSEEK),
    # With a static cache their indexers choose other keys than without one, with eager too.
    _decoder("deepseek_v32", _DEEPSEEK | _INDEXER, has_static_cache=False),
    _decoder("glm_moe_dsa", _DEEPSEEK | _INDEXER, has_static_cache=False),
    _decoder("minimax_m3_vl_text", _MINIMAX_M3, has_static_cache=False, chooses_blocks=True),
    _decoder(
        "inkling2_text",
        _INKLING,
        has_static_cache=False,
        own_code=(
            "model.layers.0.mlp_input",
            "model.layers.1.attention_input",
            "model.layers.1.mlp_input",
            "model.final_input",
        ),
    ),
    _shrunk("diffllama"),
    _shrunk("olmo3"),
    _shrunk("apertus"),
    _shrunk("seed_oss"),
    _shrunk("ministral3"),
    _shrunk("hunyuan_v1_dense"),
    _shrunk("bitnet"),
    _shrunk("arcee"),
    _shrunk("afmoe"),
    _shrunk("glm4_moe"),
    _shrunk("doge"),
    _shrunk("nanochat"),
    _shrunk("vaultgemma"),
    _shrunk("flint"),
    _shrunk("hy_v3"),
    # Four streams amplify rounding, with eager too; its indexer is one of those of above.
    _shrunk("hy_v4", layers=3, hc_mult=2, has_static_cache=False),
    _shrunk("laguna"),
    _shrunk("lfm3"),
    _shrunk("deepseek_v4", layers=3, has_static_cache=False),  # transformers has none for its layers
    _encoder("bert", is_fast=True),
    _encoder("roberta"),
    _encoder("xlm-roberta"),
    _encoder("electra", embedding_size=24),
    _encoder("albert", embedding_size=24, layers=1),
    _encoder("distilbert", dim=32, hidden_dim=40, n_layers=2, n_heads=4),
    _encoder("modernbert", local_attention=6, global_attn_every_n_layers=2, cls_token_id=3, sep_token_id=4),
    _encoder("eurobert", num_key_value_heads=2),
    _seq2seq("t5", _T5, is_fast=True),
    _seq2seq("mt5", _T5),
    _seq2seq("umt5", _T5),
    _seq2seq("bart", _BART),
    _seq2seq("mbart", _BART),
    _seq2seq("marian", _BART),
    _seq2seq("pegasus", _BART),
    _seq2seq("m2m_100", _BART),
    ModelType(
        "whisper",
        "speech",
        "AutoModelForSpeechSeq2Seq",
        _BART
        | {
            "num_mel_bins": 8,
            "max_source_positions": 13,
            "max_target_positions": 64,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
        layers=6,
    ),
    _other("vit", "image", _VIT, is_fast=True),
    _other("deit", "image", _VIT),
    _other("dinov2", "image", _VIT),
    _other("swin", "image", _SWIN, is_fast=True, layers=4),
    _other("clip", "pair", _CLIP, layers=4),
    _other(
        "siglip",
        "pair",
        {"text_config": TEXT | WIDE | {"projection_size": 32}, "vision_config": _VIT},
        layers=4,
        own_code=("vision_model.head.attention",),
    ),
    _other("wav2vec2", "audio", _WAV),
    _other("hubert", "audio", _WAV),
    _other("parakeet_encoder", "audio", _PARAKEET, takes_spectrograms=True),
)
"""Model types whose attention goes through the interface of ``transformers``."""
