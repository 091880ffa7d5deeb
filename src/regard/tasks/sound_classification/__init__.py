"""Training sound classifiers: ``regard.train.run(SoundClassificationTask(SoundClassificationRecipe(...)), ...)``."""

from regard.tasks.sound_classification.recipe import SoundClassificationRecipe
from regard.tasks.sound_classification.task import SoundClassificationTask

__all__ = ["SoundClassificationRecipe", "SoundClassificationTask"]
