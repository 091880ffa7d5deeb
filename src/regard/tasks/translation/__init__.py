"""Training translators on sentence pairs: ``regard.train.run(TranslationTask(TranslationRecipe(...)), ...)``."""

from regard.tasks.translation.recipe import TranslationRecipe
from regard.tasks.translation.task import TranslationTask

__all__ = ["TranslationRecipe", "TranslationTask"]
