"""The recipe of a language model: data, tokenizer and model. Fields that are None are chosen by the data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from regard.errors import check_choice, check_count, check_flag, check_kind
from regard.tasks.low_rank_adapters import check_adapters
from regard.tasks.recipe_fields import check_effect_on_trained_model, to_json_fields
from regard.text.language_tokenizer import LANGUAGE_TOKENIZERS

ARCHITECTURES = ("gpt2", "llama")
"""The architectures of new models."""
_PATHS_EXAMPLE = 'for example {}=(Path("book.txt"),)'


@final
@dataclass(frozen=True)
class LanguageModelRecipe:
    """The data and the model.

    Args:
        data: files of plain text, JSON lines, or folders of these.
        validation: files of validation texts; without any, a tenth of ``data`` is held out.
        text_field: the field of the text in JSON lines.
        lines: whether each line of a plain text is a document; else the whole file is one.
        model: the architecture of a new model, one of ``ARCHITECTURES``; None is gpt2.
        size: its size, one of ``presets.SIZES``; None chooses it by the data.
        start: the folder of a language model to fine-tune; None trains a new one.
        hyperparameters: values that override those of a new model's config.
        tokenizer: the kind of a new tokenizer, one of ``LANGUAGE_TOKENIZERS``; None is bpe.
        vocabulary: its size; None chooses it by the data.
        block: tokens of a training example; None is the size's. It is the context of a new model.
        batch: blocks of a batch; None is the size's.
        lora: the rank of low-rank adapters, which are trained instead of the weights; None trains all weights.
        lora_alpha: their scale, None is twice the rank.

    Raises OptionError for values of the wrong type and numbers out of range.
    """

    data: tuple[Path, ...]
    validation: tuple[Path, ...] = ()
    text_field: str = "text"
    lines: bool = False
    model: str | None = None
    size: str | None = None
    start: str | None = None
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    tokenizer: str | None = None
    vocabulary: int | None = None
    block: int | None = None
    batch: int | None = None
    lora: int | None = None
    lora_alpha: float | None = None

    def __post_init__(self) -> None:
        for name in ("data", "validation"):
            check_kind(name, getattr(self, name), tuple, do=_PATHS_EXAMPLE.format(name))
            for path in getattr(self, name):
                check_kind(name, path, Path, do=_PATHS_EXAMPLE.format(name))
        check_kind("text_field", self.text_field, str, do='for example text_field="text"')
        check_flag("lines", self.lines)
        check_kind("hyperparameters", self.hyperparameters, dict, do='for example hyperparameters={"layers": 4}')
        for name in ("model", "size", "start", "tokenizer"):
            if getattr(self, name) is not None:
                check_kind(name, getattr(self, name), str, do=f"leave {name} out for the default")
        if self.model is not None:
            check_choice("architecture of a language model", self.model, ARCHITECTURES)
        if self.tokenizer is not None:
            check_choice("kind of tokenizer", self.tokenizer, LANGUAGE_TOKENIZERS)
        for name in ("vocabulary", "block", "batch"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        check_adapters(self.lora, self.lora_alpha, start=self.start)

    def fields(self) -> dict[str, Any]:
        """The fields as JSON values, except those of the model, which the data may decide."""
        left_open = ("model", "size", "hyperparameters", "block", "batch")
        fields = to_json_fields(self, left_out=left_open)
        return fields | {"start": None if self.start is None else Path(self.start).name}

    def check_effect(self) -> None:
        """Raise OptionError for fields that have no effect when a model is fine-tuned."""
        if self.start is None:
            return
        useless = {
            "model (--model)": self.model is not None,
            "size (--size)": self.size is not None,
            "hyperparameters (--set)": bool(self.hyperparameters),
            "tokenizer (--tokenizer)": self.tokenizer is not None,
            "vocabulary (--vocabulary)": self.vocabulary is not None,
        }
        check_effect_on_trained_model(self.start, useless, parts="the architecture or the tokenizer")
