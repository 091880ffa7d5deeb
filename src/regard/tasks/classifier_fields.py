"""Fields of a classifier's recipe, whatever it reads: `regard train classify` has one option for all of them."""

from __future__ import annotations

from typing import Any

from regard.fields import declare
from regard.tasks.recipe_fields import (
    declare_attention,
    declare_augmentation,
    declare_data,
    declare_hyperparameters,
    declare_validation,
)

METRICS = ("accuracy", "macro_f1", "micro_f1", "loss")
"""Metrics that may decide which weights are the best."""
WHERE = declare(
    "Columns of text, or path, and label, and how many labels a text has; a picture or sound has one.",
    example='for example LabelFormat(columns=("text", "label"))',
)
START = declare(
    "Trained encoder to start from: minilm, the folder of a BERT or its name on the Hub, such as `regard train mlm` "
    "writes, or a classifier's folder; for pictures the folder of a ViT, DeiT, Swin, CCT, CvT or Perceiver, for sounds "
    "of a Conformer. Default: random weights.",
    option="--from",
    metavar="MODEL",
    completions=("minilm",),
    completes="models",
)
ATTENTION = declare_attention("Attention mechanism of a new encoder: a name from `regard list`. Default: dot_product.")
POSITION = declare(
    "Position of a new encoder: sinusoidal (default), learned, rotary, alibi, t5, shaw or none; for sounds relative "
    "(default), rotary or none.",
    completions=("sinusoidal", "learned", "rotary", "alibi", "t5", "shaw", "relative", "none"),
    is_saved=False,
    of_new_model=True,
)
HYPERPARAMETERS = declare_hyperparameters("layers=4, norm=pre or mechanism_options.projected=64 (of linformer)")
BATCH = declare("Examples per batch. Default: 32 texts, 64 pictures or sounds.", least=1)
CLASS_WEIGHTS = declare(
    "balanced: rare labels weigh as much as frequent ones in the loss; or none.",
    choices=("none", "balanced"),
    noun="class weights",
)
METRIC = declare(
    "Validation metric that decides which weights are best: accuracy, macro_f1, micro_f1 or loss. Default: accuracy, "
    "or macro_f1 if labels are imbalanced.",
    choices=METRICS,
)
AUGMENT = declare_augmentation(
    "Random changes of training data: none; light (pictures: crop, flip; sounds: stripes of bands and frames are "
    "hidden); or strong (pictures: also TrivialAugment, erase, mixup, cutmix; sounds: also tempo, warp). Default: "
    "light.",
    "Pictures and sounds",
)


def declare_classifier_data(example: str) -> dict[str, Any]:
    """Declare the labelled files."""
    text = "Labelled texts, pictures or sounds: a table, JSON lines, or a folder per label; repeat for more."
    return declare_data(text, example)


def declare_classifier_validation(example: str) -> dict[str, Any]:
    """Declare the labelled files for validation."""
    return declare_validation("Validation data. Default: 10 % of the data of each label are held out.", example)


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
