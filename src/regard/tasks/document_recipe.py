"""The recipe of a model of documents: a language model or a masked one. Fields that are None are chosen by the data."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from regard.errors import OptionError, check_choice, check_flag, check_kind
from regard.tasks.low_rank_adapters import check_adapters
from regard.tasks.recipe_fields import check_effect_on_trained_model, check_optional, check_paths, to_json_fields

_SIZES = ("tiny", "small", "base")


@dataclass(frozen=True)
class DocumentRecipe(ABC):
    """The data and the model: the fields that all models of documents have.

    Args:
        data: files of plain text, JSON lines, or folders of these.
        validation: files of validation texts; without any, a tenth of ``data`` is held out.
        text_field: the field of the text in JSON lines.
        lines: whether each line of a plain text is a document; else the whole file is one.
        model: the architecture of a new model, one of ``architectures``; None is the first.
        size: its size, one of the task's presets; None chooses it by the data.
        start: the folder of a model to fine-tune, or its name on the Hub; None trains a new one.
        hyperparameters: values that override those of a new model's config.
        tokenizer: the kind of a new tokenizer, one of ``tokenizers``; None is the default of the task.
        vocabulary: its size; None chooses it by the data.
        block: tokens of a training example; None is the size's. It is the longest text of a new model.
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

    kind: ClassVar[str]
    """The kind of model in messages, such as "a language model"."""
    architectures: ClassVar[tuple[str, ...]]
    """The architectures of new models."""
    tokenizers: ClassVar[tuple[str, ...]]
    """The kinds of new tokenizers."""

    def __post_init__(self) -> None:
        check_paths(self, example="book.txt")
        check_kind("text_field", self.text_field, str, do='for example text_field="body"')
        check_flag("lines", self.lines)
        check_kind("hyperparameters", self.hyperparameters, dict, do='for example hyperparameters={"layers": 4}')
        check_optional(self, texts=("model", "size", "start", "tokenizer"), counts=("vocabulary", "block", "batch"))
        if self.model in _SIZES and self.model not in self.architectures:
            raise OptionError(
                f"{self.model!r} is a size, and not an architecture of {self.kind}",
                expected=f"model (--model): one of {', '.join(self.architectures)}",
                got=repr(self.model),
                do=f"size={self.model!r} (--size {self.model})",
            )
        if self.model is not None:
            check_choice(f"architecture of {self.kind}", self.model, self.architectures)
        if self.tokenizer is not None:
            check_choice("kind of tokenizer", self.tokenizer, self.tokenizers)
        check_adapters(self.lora, self.lora_alpha, start=self.start)

    def fields(self) -> dict[str, Any]:
        """The fields as JSON values, except those of the model, which the data may decide."""
        return to_json_fields(self, left_out=("model", "size", "hyperparameters", "block", "batch"))

    def check_effect(self) -> None:
        """Raise OptionError for fields that have no effect when a model is fine-tuned."""
        if self.start is not None:
            useless = self.fields_of_new_model()
            check_effect_on_trained_model(self.start, useless, parts="the architecture or the tokenizer")

    def fields_of_new_model(self) -> dict[str, bool]:
        """The fields that only a new model has, as messages name them, and whether they are set."""
        return {
            "model (--model)": self.model is not None,
            "size (--size)": self.size is not None,
            "hyperparameters (--set)": bool(self.hyperparameters),
            "tokenizer (--tokenizer)": self.tokenizer is not None,
            "vocabulary (--vocabulary)": self.vocabulary is not None,
        }
