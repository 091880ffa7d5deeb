"""Subwords for exported models: token lists by id, and tokenizer files for ``transformers``."""

from __future__ import annotations

import json
from collections.abc import Sequence

import tokenizers
from tokenizers.processors import Sequence as Steps
from tokenizers.processors import TemplateProcessing

from regard.errors import OptionError
from regard.models.transformer import TransformerConfig
from regard.text.subwords import Subwords


def list_tokens(subwords: tuple[Subwords, Subwords], vocabularies: tuple[int, int]) -> tuple[list[str], list[str]]:
    """List the tokens of source and target by id. Raises OptionError if the model has another vocabulary size."""
    source, target = (_tokens_by_id(one, count) for one, count in zip(subwords, vocabularies, strict=True))
    return source, target


def tokenizer_files(
    config: TransformerConfig, subwords: tuple[Subwords, Subwords], tokens: tuple[Sequence[str], Sequence[str]]
) -> dict[str, str]:
    """Tokenizer files for ``transformers``, as texts by file name. The tokenizers append the end token to each text.

    A joint tokenizer goes into the model folder itself; separate ones go into its folders ``source`` and ``target``.
    """
    joint = subwords[0] is subwords[1]
    named = {}
    for side, one, names in zip(("source", "target"), subwords, tokens, strict=True):
        place = "" if joint else f"{side}/"
        named[f"{place}tokenizer.json"] = _tokenizer_json(one, names[config.end_id], config.end_id)
        named[f"{place}tokenizer_config.json"] = _tokenizer_config(config, names, one.unknown_id)
    return named


def _tokens_by_id(subwords: Subwords, count: int) -> list[str]:
    backend = tokenizers.Tokenizer.from_str(subwords.to_json())
    by_id = [backend.id_to_token(number) for number in range(backend.get_vocab_size())]
    if len(by_id) != count or None in by_id:
        raise OptionError(
            "the subwords do not belong to the model",
            expected=f"{count} tokens, with ids from 0 to {count - 1}",
            got=f"{len(by_id)} tokens",
            do="pass the subwords that the model was trained with",
        )
    return [str(token) for token in by_id]


def _tokenizer_json(subwords: Subwords, end: str, end_id: int) -> str:
    """A tokenizer.json that appends the end token to each text."""
    backend = tokenizers.Tokenizer.from_str(subwords.to_json())
    ending = TemplateProcessing(single=f"$A {end}", special_tokens=[(end, end_id)])
    backend.post_processor = ending if backend.post_processor is None else Steps([backend.post_processor, ending])
    return str(backend.to_str(pretty=True))


def _tokenizer_config(config: TransformerConfig, names: Sequence[str], unknown_id: int) -> str:
    fields = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": names[config.pad_id],
        "unk_token": names[unknown_id],
        "bos_token": names[config.start_id],
        "eos_token": names[config.end_id],
        "padding_side": "right",
        "model_max_length": config.max_length,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # "</s>" in a text is plain text, not the end token
    }
    return json.dumps(fields, indent=2) + "\n"
