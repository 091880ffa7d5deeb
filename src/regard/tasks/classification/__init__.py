"""Training text classifiers: ``regard.train.run(ClassificationTask(ClassificationRecipe(...)), ...)``."""

from typing import TYPE_CHECKING

from regard.import_when_used import import_when_used
from regard.tasks.classification.recipe import ClassificationRecipe

if TYPE_CHECKING:
    from regard.tasks.classification.task import ClassificationTask
else:
    __getattr__ = import_when_used(__name__, task=("ClassificationTask",))

__all__ = ["ClassificationRecipe", "ClassificationTask"]
