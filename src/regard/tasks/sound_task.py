"""The common part of tasks on sounds: the start of a run, steps on batches of features, and the model folder."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar, final

import numpy as np
from torch import Tensor, nn

from regard import masks
from regard.audio import AudioProcessor
from regard.audio.sound_file import SOUNDS
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
from regard.tasks.sentences import Indices
from regard.tasks.sound_batches import read_rates
from regard.tasks.sound_recipe import SoundRecipe
from regard.train import RankShard, RunContext

Recipe = TypeVar("Recipe", bound=SoundRecipe)
Entry = TypeVar("Entry", bound=MediaFile)


class SoundTask(FileTask[Recipe]):
    """Training a model of sounds by ``recipe``, for subclasses that read the data and compute the loss of a batch.

    See ``FileTask``.
    """

    model: AudioEncoder
    batches: Any
    held_out: Any
    medium = SOUNDS
    presets = PRESETS

    @abstractmethod
    def loss_of(self, output: AudioEncoderOutput, batch: NumberedBatch, rows: Indices) -> Tensor:
        """The sum of the losses of the ``rows`` of a batch, a scalar, from the output of the model for them."""

    @final
    def loss(self, model: nn.Module, batch: NumberedBatch, shard: RankShard) -> Tensor:
        """The sum of the losses of a shard of a batch, a scalar with a gradient."""
        self._measured.begin()
        device = next(model.parameters()).device
        own: Indices = shard.rows(np.arange(len(batch)))
        rows = own if len(own) else np.arange(1)
        features, mask = self.batches.augment(batch, rows)
        if not len(own):
            mask = masks.padding([0])  # every process takes part in each step; this sound counts in no statistics
        output = model(features.to(device), mask=mask)
        self.batches.prefetch_following(batch)
        return self.loss_of(output, batch, rows) if len(own) else output.logits.sum() * 0.0

    @property
    def _processor(self) -> AudioProcessor:
        assert self.model.processor is not None
        return self.model.processor

    def load_start(self, context: RunContext) -> Conformer | None:
        """Check recipe and settings before data is read, and load the model to start from; None for a new one.

        Raises OptionError for an invalid recipe or settings, CheckpointError for a model that cannot be started from.
        """
        recipe = self._recipe
        recipe.check_effect()
        if recipe.start is None:
            check_hyperparameters(recipe)
        # Settings that are invalid even with the shortest warm-up fail here, too.
        self.complete(context.settings)
        return load_conformer(recipe)

    def _choose_processor(self, sounds: list[Entry]) -> tuple[list[Entry], AudioProcessor]:
        """The sounds whose headers can be read, and the processor of a new model for them."""
        recipe = self._recipe
        max_seconds = recipe.max_seconds or DEFAULT_SECONDS
        good, rates = read_rates(sounds, max_seconds=max_seconds, skip_bad=recipe.skip_bad)
        return good, make_processor(recipe.sample_rate or choose_rate(rates), max_seconds=max_seconds)
