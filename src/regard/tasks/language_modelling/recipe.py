"""The recipe of a language model: data, tokenizer and model. Fields that are None are chosen by the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from regard.tasks.document_recipe import DocumentRecipe
from regard.tasks.low_rank_adapters import check_keep_adapters
from regard.text.language_tokenizer import LANGUAGE_TOKENIZERS


@final
@dataclass(frozen=True)
class LanguageModelRecipe(DocumentRecipe):
    """The data and the model, a GPT-2 or a Llama: see ``DocumentRecipe``. A new tokenizer is a bpe by default.

    With ``keep_adapters`` the adapters are saved alone, in the layout of ``peft``, instead of the whole model.
    """

    keep_adapters: bool = False

    kind = "a language model"
    architectures = ("gpt2", "llama")
    tokenizers = LANGUAGE_TOKENIZERS

    def __post_init__(self) -> None:
        """Raise OptionError for values of the wrong type, numbers out of range, and kept adapters without a rank."""
        super().__post_init__()
        check_keep_adapters(keep=self.keep_adapters, rank=self.lora)
