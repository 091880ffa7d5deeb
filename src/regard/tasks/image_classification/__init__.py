"""Training image classifiers: ``regard.train.run(ImageClassificationTask(ImageClassificationRecipe(...)), ...)``."""

from regard.tasks.image_classification.recipe import ImageClassificationRecipe
from regard.tasks.image_classification.task import ImageClassificationTask

__all__ = ["ImageClassificationRecipe", "ImageClassificationTask"]
