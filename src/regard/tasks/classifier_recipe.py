"""The recipe of a classifier, whatever it reads: `regard train classify` has one option for what all of them have."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.columns import LabelFormat
from regard.fields import declare, option_field
from regard.tasks.recipe_fields import (
    SMOOTHING,
    Recipe,
    declare_attention,
    declare_augmentation,
    declare_data,
    declare_hyperparameters,
    declare_start,
    declare_validation,
)

METRICS = ("accuracy", "macro_f1", "micro_f1", "loss")
"""Metrics that may decide which weights are the best."""
POSITION = declare(
    "Position of a new encoder: sinusoidal (default), learned, rotary, alibi, t5, shaw or none; for sounds relative "
    "(default), rotary or none.",
    completions=("sinusoidal", "learned", "rotary", "alibi", "t5", "shaw", "relative", "none"),
    is_saved=False,
    of_new_model=True,
    before=("hyperparameters",),
)
AUGMENT = declare_augmentation(
    "Random changes of training data: none; light (pictures: crop, flip; sounds: stripes of bands and frames are "
    "hidden); or strong (pictures: also TrivialAugment, erase, mixup, cutmix; sounds: also tempo, warp). Default: "
    "light.",
    "Pictures and sounds",
)


def declare_model(choices: tuple[str, ...]) -> dict[str, Any]:
    """Declare the size or architecture of a new model, one of ``choices``."""
    return declare(
        "Size of a new encoder: tiny, small or base; or perceiver, for pictures also vit, deit, swin, cct or cvt, "
        "alone or with a size, as deit-small. Default: chosen by the size of the data.",
        choices=choices,
        completions=("tiny", "small", "base", "perceiver", "vit", "deit", "swin", "cct", "cvt"),
        metavar="SIZE",
        is_saved=False,
        of_new_model=True,
    )


@dataclass(frozen=True)
class ClassifierRecipe(Recipe, ABC):
    """The data and the model of a classifier: the fields that all classifiers have.

    Those without a declaration here are declared by each of them. Raises OptionError for values of the wrong type and
    numbers out of range.
    """

    data: tuple[Path, ...] = field(
        metadata=declare_data(
            "Labelled texts, pictures or sounds: a table, JSON lines, or a folder per label; repeat for more.", "data/"
        )
    )
    validation: tuple[Path, ...] = field(
        default=(),
        metadata=declare_validation(
            "Validation data. Default: 10 % of the data of each label are held out.", "validation/"
        ),
    )
    where: LabelFormat = field(
        default_factory=LabelFormat,
        metadata=declare(
            "Columns of text, or path, and label, and how many labels a text has; a picture or sound has one.",
            example='for example LabelFormat(columns=("text", "label"))',
        ),
    )
    start: str | None = field(
        default=None,
        metadata=declare_start(
            "Trained encoder to start from: minilm, the folder of a BERT or its name on the Hub, such as `regard train "
            "mlm` writes, or a classifier's folder; for pictures the folder of a ViT, DeiT, Swin, CCT, CvT or "
            "Perceiver, for sounds of a Conformer. Default: random weights.",
            completions=("minilm",),
        ),
    )
    model: str | None = None
    attention: str | None = field(
        default=None,
        metadata=declare_attention(
            "Attention mechanism of a new encoder: a name from `regard list`. Default: dot_product."
        ),
    )
    hyperparameters: dict[str, Any] = field(
        default_factory=dict,
        metadata=declare_hyperparameters("layers=4, norm=pre or mechanism_options.projected=64 (of linformer)"),
    )
    batch: int = option_field(
        64, "Examples per batch. Default: 32 texts, 64 pictures or sounds.", minimum=1, before=("batch_tokens",)
    )
    class_weights: str = option_field(
        "none",
        "balanced: rare labels weigh as much as frequent ones in the loss; or none.",
        choices=("none", "balanced"),
        noun="class weights",
        before=("augment",),
    )
    metric: str | None = option_field(
        None,
        "Validation metric that decides which weights are best: accuracy, macro_f1, micro_f1 or loss. Default: "
        "accuracy, or macro_f1 if labels are imbalanced.",
        choices=METRICS,
        before=("augment",),
    )
    smoothing: float = field(default=0.0, metadata=SMOOTHING)
