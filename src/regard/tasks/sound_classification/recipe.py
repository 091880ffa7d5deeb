"""The recipe of a sound classifier: data, model, augmentation and loss. Fields that are None follow from the data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from regard.errors import check_choice, check_kind, check_number
from regard.tasks.label_validation import METRICS
from regard.tasks.sound_recipe import SoundRecipe
from regard.text.labelled import LabelFormat

CLASS_WEIGHTS = ("none", "balanced")


@final
@dataclass(frozen=True)
class SoundClassificationRecipe(SoundRecipe):
    """The data and the model of a sound classifier: see ``SoundRecipe``.

    The data are folders with one folder of sounds per label, or tables of paths and labels. A trained model to start
    from keeps its head if it has the same labels. ``metric`` is one of ``METRICS``; None is accuracy, or macro F1 if
    one label has more than three quarters of the validation sounds.

    Args:
        where: the columns of path and label in tables; a sound has one label.
        class_weights: "balanced" weights the loss of each label by the inverse of its frequency; or "none".
        smoothing: label smoothing factor, from 0 to 1.

    Raises OptionError for values of the wrong type and numbers out of range.
    """

    where: LabelFormat = field(default_factory=LabelFormat)
    class_weights: str = "none"
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kind("where", self.where, LabelFormat, do='for example LabelFormat(columns=("path", "label"))')
        if self.metric is not None:
            check_choice("metric", self.metric, METRICS)
        check_choice("class weights", self.class_weights, CLASS_WEIGHTS)
        check_number("smoothing", self.smoothing, least=0.0, most=1.0)

    @property
    def head(self) -> str:
        """The head of the model."""
        return "classification"
