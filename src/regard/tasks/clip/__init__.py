"""Training of a CLIP from pictures and their captions: ``run(ClipTask(ClipRecipe(...)), ...)``."""

from regard.tasks.clip.recipe import ClipRecipe
from regard.tasks.clip.task import ClipTask

__all__ = ["ClipRecipe", "ClipTask"]
