"""Masked language modelling: fill in masked tokens, ``MaskedLanguageModelTask`` for ``regard.train.run``."""

from regard.tasks.masked_language_modelling.recipe import MaskedLanguageModelRecipe
from regard.tasks.masked_language_modelling.task import MaskedLanguageModelTask

__all__ = ["MaskedLanguageModelRecipe", "MaskedLanguageModelTask"]
