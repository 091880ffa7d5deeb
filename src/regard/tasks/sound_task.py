"""The common part of tasks on sounds: the start of a run, steps on batches of features, and the model folder."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar, final

import numpy as np
from torch import Tensor, nn

from regard import masks
from regard.audio import AudioProcessor
from regard.audio.sound_file import SOUNDS
from regard.copy_to_device import copy_to
from regard.masks import Mask
from regard.media import MediaFile
from regard.models import AudioEncoder, Conformer
from regard.models.audio_encoder import AudioEncoderOutput
from regard.tasks.file_task import FileTask
from regard.tasks.new_conformer import (
    DEFAULT_SECONDS,
    PRESETS,
    check_hyperparameters,
    choose_rate,
    load_conformer,
    make_processor,
)
from regard.tasks.numbered_batches import NumberedBatch
from regard.tasks.recipe_task import RowTask
from regard.tasks.sentences import Indices
from regard.tasks.sound_batches import read_rates
from regard.tasks.sound_recipe import SoundRecipe

Recipe = TypeVar("Recipe", bound=SoundRecipe)
Entry = TypeVar("Entry", bound=MediaFile)


class SoundTask(FileTask[Recipe], RowTask[Recipe]):
    """Training a model of sounds by ``recipe``, for subclasses that read the data and compute the loss of a batch.

    See ``FileTask``.
    """

    model: AudioEncoder
    medium = SOUNDS
    presets = PRESETS
    check_hyperparameters = staticmethod(check_hyperparameters)

    @abstractmethod
    def loss_of(self, output: AudioEncoderOutput, batch: NumberedBatch, rows: Indices) -> Tensor:
        """The sum of the losses of the ``rows`` of a batch, a scalar, from the output of the model for them."""

    @final
    def rows_loss(self, model: nn.Module, batch: NumberedBatch, rows: Indices) -> Tensor:
        """The sum of the losses of the ``rows`` of a batch, a scalar with a gradient."""
        return self.loss_of(self._compute(model, batch, rows), batch, rows)

    @final
    def empty_loss(self, model: nn.Module, batch: NumberedBatch) -> Tensor:
        """The loss of a shard without rows, 0: of a sound that counts in no statistics."""
        loss: Tensor = self._compute(model, batch, np.arange(1), mask=masks.padding([0])).logits.sum() * 0.0
        return loss

    def _compute(self, model: nn.Module, batch: NumberedBatch, rows: Indices, *, mask: Mask | None = None) -> Any:
        """The output of the model for the ``rows`` of a batch, augmented; ``mask`` replaces the mask of padding."""
        self._measured.begin()
        features, padding = self.batches.augment(batch, rows)
        output = model(copy_to(features, next(model.parameters()).device), mask=padding if mask is None else mask)
        self.batches.prefetch_following(batch)
        return output

    @property
    def _processor(self) -> AudioProcessor:
        assert self.model.processor is not None
        return self.model.processor

    def load_start(self) -> Conformer | None:
        """Load the model to start from; None for a new one. Raises CheckpointError for one that cannot be used."""
        return load_conformer(self._recipe)

    def _choose_processor(self, sounds: list[Entry]) -> tuple[list[Entry], AudioProcessor]:
        """The sounds whose headers can be read, and the processor of a new model for them."""
        recipe = self._recipe
        max_seconds = recipe.max_seconds or DEFAULT_SECONDS
        good, rates = read_rates(sounds, max_seconds=max_seconds, skip_bad=recipe.skip_bad)
        return good, make_processor(recipe.sample_rate or choose_rate(rates), max_seconds=max_seconds)
