"""Training sound classifiers: ``regard.train.run(SoundClassificationTask(SoundClassificationRecipe(...)), ...)``."""

from typing import TYPE_CHECKING

from regard.import_when_used import import_when_used
from regard.tasks.sound_classification.recipe import SoundClassificationRecipe

if TYPE_CHECKING:
    from regard.tasks.sound_classification.task import SoundClassificationTask
else:
    __getattr__ = import_when_used(__name__, task=("SoundClassificationTask",))

__all__ = ["SoundClassificationRecipe", "SoundClassificationTask"]
