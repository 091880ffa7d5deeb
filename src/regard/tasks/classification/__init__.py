"""Training text classifiers: ``regard.train.run(ClassificationTask(ClassificationRecipe(...)), ...)``."""

from regard.tasks.classification.recipe import ClassificationRecipe
from regard.tasks.classification.task import ClassificationTask

__all__ = ["ClassificationRecipe", "ClassificationTask"]
