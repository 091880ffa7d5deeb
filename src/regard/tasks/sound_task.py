"""The common part of tasks on sounds: the start of a run, steps on batches of features, and the model folder."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar, final

import numpy as np
from torch import Tensor, nn

from regard import masks
from regard.audio import AudioProcessor
from regard.media import MediaFile
from regard.models import AudioEncoder, Conformer
from regard.models.audio_encoder import AudioEncoderOutput
from regard.tasks.labelled_data import Say
from regard.tasks.new_conformer import (
    DEFAULT_SECONDS,
    FINE_TUNING,
    SIZES,
    check_hyperparameters,
    choose_rate,
    load_start,
    make_processor,
)
from regard.tasks.numbered_batches import NumberedBatch, TimeShares
from regard.tasks.recipe_task import RecipeTask
from regard.tasks.sentences import Indices
from regard.tasks.sound_batches import SoundBatches, read_rates
from regard.tasks.sound_recipe import SoundRecipe
from regard.train import RankShard, RunContext

Recipe = TypeVar("Recipe", bound=SoundRecipe)
Entry = TypeVar("Entry", bound=MediaFile)


class SoundTask(RecipeTask[Recipe]):
    """Training a model of sounds by ``recipe``, for subclasses that read the data and compute the loss of a batch.

    ``prepare`` sets ``model``, ``batches`` to the training sounds, ``held_out`` to the validation sounds, and
    ``metric`` to what decides which weights are best.
    """

    model: AudioEncoder
    batches: SoundBatches[Any]
    held_out: SoundBatches[Any]
    metric: str
    sizes = SIZES
    fine_tuning = FINE_TUNING

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        self._measured = TimeShares(("waiting_for_data", "augmenting"))

    @abstractmethod
    def loss_of(self, output: AudioEncoderOutput, batch: NumberedBatch, rows: Indices) -> Tensor:
        """The sum of the losses of the ``rows`` of a batch, a scalar, from the output of the model for them."""

    def recipe(self) -> dict[str, Any]:
        """The recipe's fields, with the model that was chosen, and a hash of the sounds and what is learned of them."""
        return {
            **self._recipe.fields(),
            "metric": self.metric,
            "model": self.model.config_fields() | {"processor": self._processor.fields()},
            "sounds": self.batches.digest + self.held_out.digest,
        }

    @final
    def epoch(self, number: int) -> list[NumberedBatch]:
        """The batches of epoch ``number`` (from 0), in order."""
        return self.batches.epoch(number)

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
        self.batches.ask_after(batch)
        return self.loss_of(output, batch, rows) if len(own) else output.logits.sum() * 0.0

    @final
    def metrics(self) -> dict[str, float]:
        """The shares of the time in which training waited for decoded sounds, and augmented them."""
        return self._measured.shares((self.batches.waited, self.batches.augmented))

    @final
    def metadata(self) -> dict[str, Any]:
        """The numbers of sounds, and the model that training started from."""
        return {"sounds": len(self.batches), "held_out": len(self.held_out), "start": self._start_name}

    @property
    def _processor(self) -> AudioProcessor:
        assert self.model.processor is not None
        return self.model.processor

    def _load_start(self, context: RunContext) -> Conformer | None:
        """Check recipe and settings before data is read, and load the model to start from; None for a new one.

        Raises OptionError for an invalid recipe or settings, CheckpointError for a model that cannot be started from.
        """
        recipe = self._recipe
        recipe.check_effect()
        if recipe.start is None:
            check_hyperparameters(recipe)
        # Settings that are invalid even with the shortest warm-up fail here, too.
        self.complete(context.settings)
        return load_start(recipe)

    def _choose_processor(self, sounds: list[Entry], say: Say) -> tuple[list[Entry], AudioProcessor]:
        """The sounds whose headers can be read, and the processor of a new model for them."""
        recipe = self._recipe
        max_seconds = recipe.max_seconds or DEFAULT_SECONDS
        good, rates = read_rates(sounds, max_seconds=max_seconds, skip_bad=recipe.skip_bad, say=say)
        return good, make_processor(recipe.sample_rate or choose_rate(rates), max_seconds=max_seconds)
