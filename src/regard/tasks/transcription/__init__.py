"""Training of models that write the texts of sounds: ``run(TranscriptionTask(TranscriptionRecipe(...)), ...)``."""

from regard.tasks.transcription.recipe import TranscriptionRecipe
from regard.tasks.transcription.task import TranscriptionTask

__all__ = ["TranscriptionRecipe", "TranscriptionTask"]
