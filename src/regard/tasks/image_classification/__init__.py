"""Training image classifiers: ``regard.train.run(ImageClassificationTask(ImageClassificationRecipe(...)), ...)``."""

from typing import TYPE_CHECKING

from regard.import_when_used import import_when_used
from regard.tasks.image_classification.recipe import ImageClassificationRecipe

if TYPE_CHECKING:
    from regard.tasks.image_classification.task import ImageClassificationTask
else:
    __getattr__ = import_when_used(__name__, task=("ImageClassificationTask",))

__all__ = ["ImageClassificationRecipe", "ImageClassificationTask"]
