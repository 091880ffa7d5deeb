"""One network for control, texts and pictures, ``GatoTask`` for ``regard.train.run``. Needs the extra ``control``."""

from regard.tasks.gato.recipe import GatoRecipe
from regard.tasks.gato.task import GatoTask

__all__ = ["GatoRecipe", "GatoTask"]
