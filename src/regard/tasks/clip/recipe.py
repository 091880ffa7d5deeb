"""The recipe of a CLIP: data, model and augmentation. Fields that are None follow from the data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from regard.errors import check_choice, check_count, check_flag, check_kind, check_number
from regard.tasks.clip.presets import SIZES
from regard.tasks.recipe_fields import (
    check_effect_on_trained_model,
    check_optional,
    check_paths,
    to_json_fields,
)
from regard.text.labelled.columns import Columns, check_columns
from regard.vision.augmentation import Augmentation

DEFAULT_MEMORY = 2.0
"""Gigabytes of decoded pictures that are kept."""
_MOST_EDGE = 2**12
_CROPPED = 8
"""The edge of a picture, in parts that augmentation may cut off."""


@final
@dataclass(frozen=True)
class ClipRecipe:
    """The data and the model of a CLIP.

    Args:
        data: folders with a text beside each picture, or tables of paths and texts.
        validation: validation pairs; without any, some of ``data`` are held out.
        columns: the columns of path and text in tables, by name or by number from 1; None finds them.
        skip_bad: leave broken pictures out; otherwise they are an error.
        model: the size of a new model: "tiny", "small" or "base"; None chooses it by the number of pairs.
        start: a CLIP to start from: a folder, or a name on the Hub. None trains a new one.
        picture_size: height and width of a new model's pictures; None chooses it by the data.
        hyperparameters: values that override those of a new model's config: "text.NAME" and "vision.NAME" those of its
            towers.
        vocabulary: the size of a new model's vocabulary; None is that of the size.
        most_tokens: the most tokens of a caption; longer ones are cut. None is 77 for a new model.
        crop: pixels that augmentation may cut off on each side; None is an eighth of the edge.
        flip: whether half of the pictures are mirrored; captions that tell left from right are wrong then.
        batch: pairs of a batch: each picture is compared with all its texts.
        memory: gigabytes of decoded pictures to keep; more pictures are decoded again in each epoch.

    Raises OptionError for values of the wrong type and numbers out of range.
    """

    data: tuple[Path, ...]
    validation: tuple[Path, ...] = ()
    columns: Columns | None = None
    skip_bad: bool = False
    model: str | None = None
    start: str | None = None
    picture_size: int | None = None
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    vocabulary: int | None = None
    most_tokens: int | None = None
    crop: int | None = None
    flip: bool = False
    batch: int = 128
    memory: float = DEFAULT_MEMORY

    def __post_init__(self) -> None:
        check_paths(self, example="photos/")
        check_columns(self.columns, ("path", "text"))
        check_kind("hyperparameters", self.hyperparameters, dict, do='for example hyperparameters={"text.layers": 4}')
        check_optional(self, texts=("model", "start"), counts=("vocabulary", "most_tokens"))
        if self.model is not None:
            check_choice("model", self.model, SIZES)
        for name in ("skip_bad", "flip"):
            check_flag(name, getattr(self, name))
        check_count("batch", self.batch, least=2)
        check_number("memory", self.memory, least=0.0)
        if self.picture_size is not None:
            check_count("picture_size", self.picture_size, most=_MOST_EDGE)
        self.augmentation(32)  # raises for parts that are out of range

    def augmentation(self, edge: int) -> Augmentation:
        """The augmentation of pictures whose edge is ``edge``."""
        return Augmentation(crop=max(1, edge // _CROPPED) if self.crop is None else self.crop, flip=self.flip)

    def fields(self) -> dict[str, Any]:
        """The fields as JSON values, except those of the model, which the data may decide, and ``memory``."""
        return to_json_fields(self, left_out=("model", "hyperparameters", "picture_size", "vocabulary", "memory"))

    def check_effect(self) -> None:
        """Raise OptionError for fields that have no effect with a trained model."""
        if self.start is None:
            return
        useless = {
            "model (--model)": self.model is not None,
            "picture_size (--picture-size)": self.picture_size is not None,
            "hyperparameters (--set)": bool(self.hyperparameters),
            "vocabulary (--vocabulary)": self.vocabulary is not None,
        }
        check_effect_on_trained_model(self.start, useless, parts="the architecture or the tokenizer")
