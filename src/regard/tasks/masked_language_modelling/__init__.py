"""Masked language modelling: fill in masked tokens, ``MaskedLanguageModelTask`` for ``regard.train.run``."""

from typing import TYPE_CHECKING

from regard.import_when_used import import_when_used
from regard.tasks.masked_language_modelling.recipe import MaskedLanguageModelRecipe

if TYPE_CHECKING:
    from regard.tasks.masked_language_modelling.task import MaskedLanguageModelTask
else:
    __getattr__ = import_when_used(__name__, task=("MaskedLanguageModelTask",))

__all__ = ["MaskedLanguageModelRecipe", "MaskedLanguageModelTask"]
