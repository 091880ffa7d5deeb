"""Small checkpoint folders of ``transformers``: random weights in safetensors, and a tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

TEXTS = [
    "The keys to the old cabinet are on the table, because it was too small for them.",
    "The animal did not cross the street because it was too tired.",
    "A dog runs through the snow. Ein Hund läuft durch den Schnee.",
] * 3
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
WIDE = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 128}
GROUPED = WIDE | TEXT | {"num_key_value_heads": 2, "head_dim": 8}
SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("AutoModelForCausalLM", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "llama": ("AutoModelForCausalLM", GROUPED),
    "gemma2": (
        "AutoModelForCausalLM",
        GROUPED | {"query_pre_attn_scalar": 8, "layer_types": ["full_attention"] * 2, "attn_logit_softcapping": 3.0},
    ),
    "gpt_oss": ("AutoModelForCausalLM", GROUPED | {"num_local_experts": 3, "num_experts_per_tok": 2}),
    "roberta": ("AutoModelForMaskedLM", WIDE | TEXT | {"max_position_embeddings": 40}),
    "bert": ("AutoModelForMaskedLM", WIDE | TEXT),
    "albert": ("AutoModelForMaskedLM", WIDE | TEXT | {"embedding_size": 24}),
    "bloom": ("AutoModelForCausalLM", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "gpt_neo": (
        "AutoModelForCausalLM",
        {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
    ),
    "gemma3n_text": (
        "AutoModelForCausalLM",
        GROUPED
        | {
            "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 64,
            "laurel_rank": 4,
            "altup_num_inputs": 2,
            "activation_sparsity_pattern": [0.0, 0.0],
            "layer_types": ["full_attention"] * 2,
        },
    ),
    "t5": (
        "AutoModelForSeq2SeqLM",
        {
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 40,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
            "pad_token_id": 0,
            "eos_token_id": 2,
        },
    ),
    "bart": (
        "AutoModelForSeq2SeqLM",
        {
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 40,
            "decoder_ffn_dim": 40,
            "max_position_embeddings": 128,
            "decoder_start_token_id": 2,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "forced_eos_token_id": None,
        },
    ),
}
BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def save_checkpoint(kind: str, folder: Path) -> Path:
    """Write a folder with a model of this type, far from uniform attention, and return it."""
    import transformers

    tokenizer = make_tokenizer(kind)
    auto, sizes = SIZES[kind]
    config = transformers.AutoConfig.for_model(kind, vocab_size=tokenizer.get_vocab_size(), **sizes)
    model = getattr(transformers, auto).from_config(config)
    generator = torch.Generator().manual_seed(43)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * 1.5 * parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(noise * 0.1)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def make_tokenizer(kind: str) -> Tokenizer:
    """Train a tokenizer in the style of the type: word pieces, bytes or a metaspace; special tokens as it has them."""
    if kind == "bert":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=BERT_SPECIAL, show_progress=False)
        tokenizer.train_from_iterator(TEXTS, trainer)
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        return tokenizer
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    if kind in ("t5", "llama", "gemma2"):
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        letters = []
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=letters, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    ends = {"t5": "$A </s>", "bart": "<s> $A </s>", "roberta": "<s> $A </s>", "llama": "<s> $A", "gemma2": "<s> $A"}
    if kind in ends:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=ends[kind], special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    return tokenizer


def change_config(folder: Path, **fields: Any) -> None:
    """Set fields of config.json; ``...`` removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | fields
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not ...}), encoding="utf-8")
