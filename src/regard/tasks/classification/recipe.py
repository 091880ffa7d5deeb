"""The recipe of a classifier: data, tokenizer, model and loss. Fields that are None are chosen by the data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from regard.errors import OptionError, check_choice, check_count, check_flag, check_kind, check_number
from regard.tasks.classification.presets import reads_bytes
from regard.tasks.low_rank_adapters import check_adapters
from regard.tasks.recipe_fields import check_effect_on_trained_model, check_optional, check_paths, to_json_fields
from regard.text.labelled import LabelFormat
from regard.text.pooling import MODES
from regard.text.tokenizer_training import TOKENIZERS

CLASS_WEIGHTS = ("none", "balanced")
METRICS = ("accuracy", "macro_f1", "micro_f1", "loss")


@final
@dataclass(frozen=True)
class ClassificationRecipe:
    """The data and the model of a classifier.

    Args:
        data: tables or JSON lines of labelled texts, or folders with one folder of texts per label.
        where: the columns of text and label, and how many labels a text has.
        validation: validation texts; without any, some of ``data`` are held out.
        model: the size of a new encoder, or a Perceiver, which reads bytes: one of ``presets.MODELS``; None chooses the
            size by the number of texts.
        start: a trained encoder to start from: "minilm", the folder of a BERT, a name on the Hub, or the folder of a
            classifier, whose head is kept if it has the same labels. None trains a new encoder.
        hyperparameters: values that override those of the new encoder's config.
        attention: the attention mechanism of a new encoder; position: its position.
        tokenizer: the kind of a new tokenizer, one of ``TOKENIZERS``; None is bpe. vocabulary: its size; None chooses
            it by the data.
        most_tokens: the most tokens of a text, in training and later; longer texts are skipped, or cut with
            ``truncate``. None is 512, or the limit of the trained encoder if that is lower.
        truncate: cut long texts instead of skipping them.
        pooling: "mean", the mean over the tokens, or "cls", the first token.
        batch: texts of a batch. batch_tokens: maximum tokens of a batch, padding included; None is no limit.
        class_weights: "balanced" weights the loss of each label by the inverse of its frequency; or "none".
        smoothing: label smoothing factor, from 0 to 1, for one label per text.
        metric: the validation metric that decides which weights are best, one of ``METRICS``; None is accuracy, or
            macro F1 if one label has more than three quarters of the validation texts or a text may have several.
        lora: the rank of low-rank adapters, which are trained instead of the weights; None trains all weights.
        lora_alpha: their scale, None is twice the rank.

    Raises OptionError for values of the wrong type and numbers out of range.
    """

    data: tuple[Path, ...]
    where: LabelFormat = field(default_factory=LabelFormat)
    validation: tuple[Path, ...] = ()
    model: str | None = None
    start: str | None = None
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    attention: str | None = None
    position: str | None = None
    tokenizer: str | None = None
    vocabulary: int | None = None
    most_tokens: int | None = None
    truncate: bool = False
    pooling: str = "mean"
    batch: int = 32
    batch_tokens: int | None = None
    class_weights: str = "none"
    smoothing: float = 0.0
    metric: str | None = None
    lora: int | None = None
    lora_alpha: float | None = None

    def __post_init__(self) -> None:
        check_paths(self, example="texts.tsv")
        check_kind("where", self.where, LabelFormat, do='for example LabelFormat(columns=("text", "label"))')
        check_kind("hyperparameters", self.hyperparameters, dict, do='for example hyperparameters={"layers": 4}')
        check_optional(
            self,
            texts=("model", "start", "attention", "position", "tokenizer", "metric"),
            counts=("vocabulary", "most_tokens", "batch_tokens"),
        )
        if self.tokenizer is not None:
            check_choice("kind of tokenizer", self.tokenizer, TOKENIZERS)
        if self.metric is not None:
            check_choice("metric", self.metric, METRICS)
        check_choice("pooling", self.pooling, MODES)
        check_choice("class weights", self.class_weights, CLASS_WEIGHTS)
        check_flag("truncate", self.truncate)
        check_count("batch", self.batch)
        check_number("smoothing", self.smoothing, least=0.0, most=1.0)
        check_adapters(self.lora, self.lora_alpha, start=self.start)

    def fields(self) -> dict[str, Any]:
        """The fields as JSON values, except those of the model, which the data may decide."""
        return to_json_fields(self, left_out=("model", "hyperparameters", "attention", "position", "most_tokens"))

    def check_effect(self) -> None:
        """Raise OptionError for fields that have no effect with a trained encoder, or with one that reads bytes."""
        if self.start is None:
            self._check_bytes()
            return
        useless = {
            "model (--model)": self.model is not None,
            "hyperparameters (--set)": bool(self.hyperparameters),
            "attention (--attention)": self.attention is not None,
            "position (--position)": self.position is not None,
            "tokenizer (--tokenizer)": self.tokenizer is not None,
            "vocabulary (--vocabulary)": self.vocabulary is not None,
        }
        check_effect_on_trained_model(self.start, useless, parts="the architecture or the tokenizer")

    def _check_bytes(self) -> None:
        """Raise OptionError for fields that a Perceiver of bytes has no use for."""
        useless = {
            "attention (--attention)": self.attention,
            "position (--position)": self.position,
            "tokenizer (--tokenizer)": self.tokenizer,
            "vocabulary (--vocabulary)": self.vocabulary,
        }
        given = [name for name, value in useless.items() if value is not None]
        if given and reads_bytes(self.model):
            raise OptionError(
                "a Perceiver reads the bytes of a text, with trained positions and the dot product",
                expected="settings that leave them as they are",
                got="settings that would change them",
                do=f"leave out {', '.join(given)}, or train a Transformer encoder: model=... (--model) tiny, small or "
                "base",
            )
