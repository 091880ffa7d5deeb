"""The recipe of a sound classifier: data, model, augmentation and loss. Fields that are None follow from the data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from regard.arguments import explain_arguments
from regard.columns import LabelFormat
from regard.tasks import classifier_fields as declared
from regard.tasks.presets import SIZES
from regard.tasks.recipe_fields import SMOOTHING
from regard.tasks.sound_recipe import SoundRecipe


@final
@explain_arguments
@dataclass(frozen=True)
class SoundClassificationRecipe(SoundRecipe):
    """The data and the model of a sound classifier.

    The data are folders with one folder of sounds per label, or tables of paths and labels. A trained model to start
    from keeps its head if it has the same labels. Labels are imbalanced if one has more than three quarters of the
    validation sounds.

    Raises OptionError for values of the wrong type and numbers out of range.
    """

    data: tuple[Path, ...] = field(metadata=declared.declare_classifier_data("birds/"))
    validation: tuple[Path, ...] = field(default=(), metadata=declared.declare_classifier_validation("birds/"))
    start: str | None = field(default=None, metadata=declared.START)
    model: str | None = field(default=None, metadata=declared.declare_model(SIZES))
    attention: str | None = field(default=None, metadata=declared.ATTENTION)
    position: str | None = field(default=None, metadata=declared.POSITION)
    hyperparameters: dict[str, Any] = field(default_factory=dict, metadata=declared.HYPERPARAMETERS)
    batch: int = field(default=64, metadata=declared.BATCH)
    metric: str | None = field(default=None, metadata=declared.METRIC)
    augment: str = field(default="light", metadata=declared.AUGMENT)
    where: LabelFormat = field(default_factory=LabelFormat, metadata=declared.WHERE)
    class_weights: str = field(default="none", metadata=declared.CLASS_WEIGHTS)
    smoothing: float = field(default=0.0, metadata=SMOOTHING)

    @property
    def head(self) -> str:
        """The head of the model."""
        return "classification"
