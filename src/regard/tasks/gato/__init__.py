"""One network for control, texts and pictures, ``GatoTask`` for ``regard.train.run``. Needs the extra ``control``."""

from typing import TYPE_CHECKING

from regard.import_when_used import import_when_used
from regard.tasks.gato.recipe import GatoRecipe

if TYPE_CHECKING:
    from regard.tasks.gato.task import GatoTask
else:
    __getattr__ = import_when_used(__name__, task=("GatoTask",))

__all__ = ["GatoRecipe", "GatoTask"]
