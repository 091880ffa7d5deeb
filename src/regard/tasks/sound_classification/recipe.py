"""The recipe of a sound classifier: data, model, augmentation and loss. Fields that are None follow from the data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from regard.arguments import explain_arguments
from regard.tasks.classifier_recipe import AUGMENT, POSITION, ClassifierRecipe, declare_model
from regard.tasks.presets import SIZES
from regard.tasks.sound_recipe import SoundRecipe


@final
@explain_arguments
@dataclass(frozen=True)
class SoundClassificationRecipe(ClassifierRecipe, SoundRecipe):
    """The data and the model of a sound classifier.

    The data are folders with one folder of sounds per label, or tables of paths and labels. A trained model to start
    from keeps its head if it has the same labels. Labels are imbalanced if one has more than three quarters of the
    validation sounds.

    Raises OptionError for values of the wrong type and numbers out of range.
    """

    model: str | None = field(default=None, metadata=declare_model(SIZES))
    position: str | None = field(default=None, metadata=POSITION)
    augment: str = field(default="light", metadata=AUGMENT)

    @property
    def head(self) -> str:
        """The head of the model."""
        return "classification"
