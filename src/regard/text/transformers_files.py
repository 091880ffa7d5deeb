"""Tokenizer files for ``transformers``, whose tokenizer then gives the same ids, special tokens included.

The tokenizer of subwords replaces no strings by placeholders, so texts with strings such as %s are tokenized
differently.
"""

from __future__ import annotations

import json

import tokenizers
from tokenizers.processors import Sequence as Steps
from tokenizers.processors import TemplateProcessing

from regard.text.subwords import Subwords
from regard.text.tokenizer import Tokenizer


def transformers_files(
    subwords: Subwords, *, pad_id: int, start_id: int, end_id: int, max_tokens: int | None
) -> dict[str, str]:
    """tokenizer.json, which appends the end token to each text, and tokenizer_config.json, as texts by file name.

    ``max_tokens`` is the most tokens of a text; None is no limit.
    """
    backend = tokenizers.Tokenizer.from_str(subwords.to_json())
    end = backend.id_to_token(end_id)
    ending = TemplateProcessing(single=f"$A {end}", special_tokens=[(end, end_id)])
    backend.post_processor = ending if backend.post_processor is None else Steps([backend.post_processor, ending])
    fields = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": backend.id_to_token(pad_id),
        "unk_token": backend.id_to_token(subwords.unknown_id),
        "bos_token": backend.id_to_token(start_id),
        "eos_token": end,
        "padding_side": "right",
        **({} if max_tokens is None else {"model_max_length": max_tokens}),
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # "</s>" in a text is plain text, not the end token
    }
    return {
        "tokenizer.json": str(backend.to_str(pretty=True)),
        "tokenizer_config.json": json.dumps(fields, indent=2) + "\n",
    }


def encoder_tokenizer_files(tokenizer: Tokenizer, max_tokens: int | None) -> dict[str, str]:
    """tokenizer.json and tokenizer_config.json of an encoder, as texts by file name.

    ``transformers`` uses tokenizer.json unchanged, and knows its special tokens and the most tokens of a text,
    ``max_tokens``; None is no limit.
    """
    limit = {} if max_tokens is None else {"model_max_length": max_tokens}
    fields = {"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer.token_roles, **limit}
    return {
        "tokenizer.json": tokenizer.to_json(),
        "tokenizer_config.json": json.dumps(fields, indent=2, ensure_ascii=False) + "\n",
    }
