"""Training of a CLIP from pictures and their captions: ``run(ClipTask(ClipRecipe(...)), ...)``."""

from typing import TYPE_CHECKING

from regard.import_when_used import import_when_used
from regard.tasks.clip.recipe import ClipRecipe

if TYPE_CHECKING:
    from regard.tasks.clip.task import ClipTask
else:
    __getattr__ = import_when_used(__name__, task=("ClipTask",))

__all__ = ["ClipRecipe", "ClipTask"]
