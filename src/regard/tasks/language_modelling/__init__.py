"""Language modelling: predict the next token of documents, ``LanguageModelTask`` for ``regard.train.run``."""

from regard.tasks.language_modelling.recipe import LanguageModelRecipe
from regard.tasks.language_modelling.task import LanguageModelTask

__all__ = ["LanguageModelRecipe", "LanguageModelTask"]
