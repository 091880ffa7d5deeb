"""Training translators on sentence pairs: ``regard.train.run(TranslationTask(TranslationRecipe(...)), ...)``."""

from typing import TYPE_CHECKING

from regard.import_when_used import import_when_used
from regard.tasks.translation.recipe import TranslationRecipe

if TYPE_CHECKING:
    from regard.tasks.translation.task import TranslationTask
else:
    __getattr__ = import_when_used(__name__, task=("TranslationTask",))

__all__ = ["TranslationRecipe", "TranslationTask"]
