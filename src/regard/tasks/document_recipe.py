"""The recipe of a model of documents: a language model or a masked one. Fields that are None are chosen by the data."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from regard.errors import OptionError
from regard.fields import declare, declared_fields, option_field
from regard.tasks.presets import SIZES
from regard.tasks.recipe_fields import (
    LORA,
    LORA_ALPHA,
    Recipe,
    check_adapters,
    declare_data,
    declare_hyperparameters,
    declare_validation,
)


def declare_tokenizer(text: str, choices: tuple[str, ...]) -> dict[str, Any]:
    """Declare the kind of a new tokenizer."""
    return declare(text, choices=choices, noun="kind of tokenizer", of_new_model=True)


def declare_block(text: str) -> dict[str, Any]:
    """Declare the tokens of a training example."""
    return declare(text, minimum=1, is_saved=False)


@dataclass(frozen=True)
class DocumentRecipe(Recipe, ABC):
    """The data and the model: the fields that all models of documents have.

    Those without a declaration here are declared by each of them. Raises OptionError for values of the wrong type and
    numbers out of range.
    """

    data: tuple[Path, ...] = field(
        metadata=declare_data(
            "Texts: a file of plain text, JSON lines or a table, or a folder of these; repeat for more.", "book.txt"
        )
    )
    validation: tuple[Path, ...] = field(
        default=(),
        metadata=declare_validation(
            "Validation texts. Default: a tenth is held out, of one text its end, of several some documents.",
            "book.txt",
        ),
    )
    text_field: str = option_field(
        "text",
        "Field of JSON lines, or column of a table, with the text.",
        example='for example text_field="body"',
        option="--field",
    )
    lines: bool = option_field(False, "Each line of a plain text is a document.")
    start: str | None = None
    model: str | None = None
    size: str | None = option_field(
        None,
        "Size of a new model: tiny, small or base. Default: chosen by the size of the data.",
        completions=SIZES,
        metavar="SIZE",
        is_saved=False,
        of_new_model=True,
    )
    hyperparameters: dict[str, Any] = field(
        default_factory=dict, metadata=declare_hyperparameters("layers=6 or deviation=0.01")
    )
    tokenizer: str | None = None
    vocabulary: int | None = option_field(
        None, "Size of its vocabulary. Default: chosen by the data.", minimum=1, of_new_model=True
    )
    block: int | None = None
    batch: int | None = option_field(
        None, "Blocks per batch. Default: chosen by the model size.", minimum=1, is_saved=False
    )
    lora: int | None = field(default=None, metadata=LORA)
    lora_alpha: float | None = field(default=None, metadata=LORA_ALPHA)

    kind: ClassVar[str]
    """The kind of model in messages, such as "a language model"."""
    fixed = "the architecture or the tokenizer"

    def __post_init__(self) -> None:
        declared = {field.name: field for field in declared_fields(type(self))}
        architectures = declared["model"].facts["choices"]
        if self.model in SIZES and self.model not in architectures:
            raise OptionError(
                f"{self.model!r} is a size, and not an architecture of {self.kind}",
                expected=f"`model`: one of {', '.join(architectures)}",
                got=repr(self.model),
                do=f"`size={self.model!r}`",
            )
        super().__post_init__()
        check_adapters(self.lora, self.lora_alpha, start=self.start)
