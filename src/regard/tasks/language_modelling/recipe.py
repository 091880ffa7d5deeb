"""The recipe of a language model: data, tokenizer and model. Fields that are None are chosen by the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from regard.tasks.document_recipe import DocumentRecipe
from regard.text.language_tokenizer import LANGUAGE_TOKENIZERS


@final
@dataclass(frozen=True)
class LanguageModelRecipe(DocumentRecipe):
    """The data and the model, a GPT-2 or a Llama: see ``DocumentRecipe``. A new tokenizer is a bpe by default."""

    kind = "a language model"
    architectures = ("gpt2", "llama")
    tokenizers = LANGUAGE_TOKENIZERS
