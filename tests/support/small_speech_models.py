"""Folders of small speech models of ``transformers`` with random weights, a tokenizer and features of sounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import models, pre_tokenizers

_TEXT_WORDS = "a bird sang in the old tree while we sat near it and one more came by ."
SPECIAL = ("<pad>", "<s>", "</s>", "<|en|>", "<|transcribe|>", "<|notimestamps|>")
WORDS = (*SPECIAL, *_TEXT_WORDS.split(" "))
"""The vocabulary, by id."""
MULTILINGUAL = {
    "is_multilingual": True,
    "lang_to_id": {"<|en|>": 3},
    "task_to_id": {"transcribe": 4},
    "no_timestamps_token_id": 5,
}
"""Fields of generation_config.json of a Whisper of several languages, whose prompt has four tokens."""
_TEXT = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
_SIZES = _TEXT | {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_target_positions": 21,
}
SIZES: dict[str, dict[str, Any]] = {
    "whisper": _SIZES
    | {"num_mel_bins": 8, "max_source_positions": 100, "suppress_tokens": None, "begin_suppress_tokens": None},
    "speech_to_text": _SIZES | {"input_feat_per_channel": 8, "conv_channels": 16},
    "moonshine": _TEXT
    | {
        "hidden_size": 32,
        "intermediate_size": 40,
        "encoder_num_hidden_layers": 2,
        "decoder_num_hidden_layers": 3,
        "encoder_num_attention_heads": 4,
        "decoder_num_attention_heads": 4,
        "max_position_embeddings": 21,
    },
}


def make_tokenizer() -> tokenizers.Tokenizer:
    """A tokenizer of whole words."""
    tokenizer = tokenizers.Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def save_speech_model(kind: str, folder: Path, **generation: Any) -> Path:
    """Write a folder with a model of this type, far from uniform attention, and return it.

    Its Whisper reads 2 seconds; ``generation`` are fields of generation_config.json.
    """
    import transformers

    tokenizer = make_tokenizer()
    config = transformers.AutoConfig.for_model(kind, vocab_size=tokenizer.get_vocab_size(), **SIZES[kind])
    torch.manual_seed(44)
    model = transformers.AutoModelForSpeechSeq2Seq.from_config(config)
    generator = torch.Generator().manual_seed(44)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "embed" not in name and parameter.dim() > 1:
                parameter.copy_(noise * 1.5 * parameter[0].numel() ** -0.5)
            else:
                parameter.add_(noise * 0.1)
    model.save_pretrained(folder)
    path = folder / "generation_config.json"
    no_special = {"suppress_tokens": [0, 1, 3, 4, 5], "begin_suppress_tokens": [2]}
    fields = {**json.loads(path.read_text()), **no_special, **generation}
    del fields["_from_model_config"]  # transformers then reads fields that only this type has
    path.write_text(json.dumps(fields))
    tokenizer.save(str(folder / "tokenizer.json"))
    extractors = {
        "whisper": lambda: transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=2),
        "speech_to_text": lambda: transformers.Speech2TextFeatureExtractor(feature_size=8, num_mel_bins=8),
        "moonshine": lambda: transformers.Wav2Vec2FeatureExtractor(do_normalize=False),
    }
    extractors[kind]().save_pretrained(folder)
    return folder
