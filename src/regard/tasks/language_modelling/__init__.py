"""Language modelling: predict the next token of documents, ``LanguageModelTask`` for ``regard.train.run``."""

from typing import TYPE_CHECKING

from regard.import_when_used import import_when_used
from regard.tasks.language_modelling.recipe import LanguageModelRecipe

if TYPE_CHECKING:
    from regard.tasks.language_modelling.task import LanguageModelTask
else:
    __getattr__ = import_when_used(__name__, task=("LanguageModelTask",))

__all__ = ["LanguageModelRecipe", "LanguageModelTask"]
