"""Training of models that write the texts of sounds: ``run(TranscriptionTask(TranscriptionRecipe(...)), ...)``."""

from typing import TYPE_CHECKING

from regard.import_when_used import import_when_used
from regard.tasks.transcription.recipe import TranscriptionRecipe

if TYPE_CHECKING:
    from regard.tasks.transcription.task import TranscriptionTask
else:
    __getattr__ = import_when_used(__name__, task=("TranscriptionTask",))

__all__ = ["TranscriptionRecipe", "TranscriptionTask"]
