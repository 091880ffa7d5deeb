"""T5 folders small enough to build in a test: random weights by ``transformers``, and a unigram tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SENTINELS = 5
TEXTS = [
    "translate English to German: A small dog runs through the snow.",
    "translate English to German: Two dogs run. summarize: The dog is small, 100 % sure.",
    "Ein kleiner Hund läuft durch den Schnee. Zwei Hunde laufen. Der Hund ist klein.",
    "hund katze haus dog cat house",
] * 5
SIZES = {"d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
CONFIG = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}


def make_tokenizer(texts: list[str] = TEXTS) -> Tokenizer:
    """Train a tokenizer as a T5 has it: unigram pieces, spaces as ▁, sentinels at the end, </s> after each text."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("  ", " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=special, unk_token="<unk>", show_progress=False, n_sub_iterations=1
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([f"<extra_id_{number}>" for number in reversed(range(SENTINELS))])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return tokenizer


def save_t5(folder: Path, *, encoder: bool = False, seed: int = 11, **fields: Any) -> Path:
    """Write the folder of a T5 as ``transformers`` does, tokenizer included, and return it.

    Weights are far from their initial sizes, so that outputs differ between texts.
    """
    import transformers

    tokenizer = make_tokenizer()
    options = SIZES | CONFIG | {"vocab_size": tokenizer.get_vocab_size() + 7} | fields
    model = (transformers.T5EncoderModel if encoder else transformers.T5ForConditionalGeneration)(
        transformers.T5Config(**options)
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * 1.5 * parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(noise * 0.1)
    model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    return folder
