"""Subwords for exported models: token lists by id, and tokenizer files for ``transformers``."""

from __future__ import annotations

import tokenizers

from regard.errors import OptionError
from regard.models.transformer import TransformerConfig
from regard.text.subwords import Subwords
from regard.text.transformers_files import transformers_files


def list_tokens(subwords: tuple[Subwords, Subwords], vocabularies: tuple[int, int]) -> tuple[list[str], list[str]]:
    """List the tokens of source and target by id. Raises OptionError if the model has another vocabulary size."""
    source, target = (_tokens_by_id(one, count) for one, count in zip(subwords, vocabularies, strict=True))
    return source, target


def tokenizer_files(config: TransformerConfig, subwords: tuple[Subwords, Subwords]) -> dict[str, str]:
    """Tokenizer files for ``transformers``, as texts by file name. The tokenizers append the end token to each text.

    A joint tokenizer goes into the model folder itself; separate ones go into its folders ``source`` and ``target``.
    """
    joint = subwords[0] is subwords[1]
    named: dict[str, str] = {}
    ids = {name: getattr(config, name) for name in ("pad_id", "start_id", "end_id")}
    for side, one in zip(("source", "target"), subwords, strict=True):
        files = transformers_files(one, **ids, max_tokens=config.max_length)
        named |= {name if joint else f"{side}/{name}": text for name, text in files.items()}
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
