"""The recipe of a classifier: data, tokenizer, model and loss. Fields that are None are chosen by the data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from regard.arguments import explain_arguments
from regard.errors import OptionError
from regard.fields import option_field
from regard.tasks.classifier_recipe import POSITION, ClassifierRecipe, declare_model
from regard.tasks.presets import name_models
from regard.tasks.recipe_fields import LORA, LORA_ALPHA, check_adapters

PERCEIVER = "perceiver"
MODELS = name_models((PERCEIVER,))
"""Names of new models: a size is the size of a Transformer encoder; a Perceiver alone has the size of the data."""


def reads_bytes(name: str | None) -> bool:
    """Whether the model ``name`` is a Perceiver, which reads bytes."""
    return name is not None and name.startswith(PERCEIVER)


@final
@explain_arguments
@dataclass(frozen=True)
class ClassificationRecipe(ClassifierRecipe):
    """The data and the model of a classifier.

    A classifier to start from keeps its head if it has the same labels. A model named "perceiver" reads bytes. The most
    tokens of a text are those in training and later, by default 512 or the limit of the trained encoder if that is
    lower. Labels are imbalanced if one has more than three quarters of the validation texts, or if a text may have
    several; label smoothing is for one label per text.

    Raises OptionError for values of the wrong type and numbers out of range.
    """

    model: str | None = field(default=None, metadata=declare_model(MODELS))
    position: str | None = field(default=None, metadata=POSITION)
    pooling: str = option_field(
        "mean", "What the label is read from: mean (of the tokens) or cls (the first token).", choices=("mean", "cls")
    )
    tokenizer: str | None = option_field(
        None,
        "Tokenizer of a new encoder: bpe, unigram, words (by white space) or characters. Default: bpe.",
        choices=("bpe", "unigram", "words", "characters"),
        noun="kind of tokenizer",
        of_new_model=True,
    )
    vocabulary: int | None = option_field(
        None, "Size of its vocabulary. Default: chosen by the data.", minimum=1, of_new_model=True
    )
    most_tokens: int | None = option_field(
        None, "Maximum tokens of a text; longer texts are skipped. Default: 512.", minimum=1, is_saved=False
    )
    truncate: bool = option_field(False, "Cut texts at the maximum instead of skipping them.")
    batch: int = 32
    batch_tokens: int | None = option_field(
        None, "Maximum tokens per batch, padding included. Default: no limit.", minimum=1
    )
    lora: int | None = field(default=None, metadata=LORA)
    lora_alpha: float | None = field(default=None, metadata=LORA_ALPHA)

    fixed = "the architecture or the tokenizer"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_adapters(self.lora, self.lora_alpha, start=self.start)

    def check_effect(self) -> None:
        """Raise OptionError for fields that have no effect with a trained encoder, or with one that reads bytes."""
        super().check_effect()
        if self.start is None:
            self._check_bytes()

    def _check_bytes(self) -> None:
        """Raise OptionError for fields that a Perceiver of bytes has no use for."""
        useless = {
            "`attention`": self.attention,
            "`position`": self.position,
            "`tokenizer`": self.tokenizer,
            "`vocabulary`": self.vocabulary,
        }
        given = [name for name, value in useless.items() if value is not None]
        if given and reads_bytes(self.model):
            raise OptionError(
                "a Perceiver reads the bytes of a text, with trained positions and the dot product",
                expected="settings that leave them as they are",
                got="settings that would change them",
                do=f"leave out {', '.join(given)}, or train a Transformer encoder: `model=...` tiny, small or base",
            )
