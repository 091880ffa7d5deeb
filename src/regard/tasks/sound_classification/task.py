"""The task of sound classification, for ``regard.train.run``.

Batches of sounds with the labels that a model has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor, nn

from regard.audio.sound_augmentation import SoundAugmentation
from regard.audio.sound_file import SOUNDS
from regard.media import LabelledFile, check_labels, label_matrix, read_and_report_labelled
from regard.models import AudioEncoder
from regard.models.audio_encoder import AudioEncoderOutput
from regard.tasks.classification.loss import balanced_weights, label_loss
from regard.tasks.decoded_files import FileSet, split_files
from regard.tasks.label_validation import baseline_score, describe_score, validate_labels
from regard.tasks.labelled_data import (
    Say,
    choose_metric,
    describe_labels,
    find_labels,
    report_conflicts,
    report_lost_labels,
    report_replaced_head,
)
from regard.tasks.new_conformer import (
    Build,
    build_conformer,
    choose_size,
    describe_model,
    try_model,
    with_labels,
)
from regard.tasks.numbered_batches import NumberedBatch
from regard.tasks.sentences import Indices
from regard.tasks.sound_batches import Features, SoundBatches, decode_sounds
from regard.tasks.sound_classification.recipe import SoundClassificationRecipe
from regard.tasks.sound_task import SoundTask
from regard.train import RunContext, Validation


@final
class Batches(SoundBatches[LabelledFile]):
    """Batches of labelled sounds; ``truth`` (sounds, labels) is True where a sound has a label."""

    def __init__(
        self,
        sounds: FileSet[LabelledFile, Features],
        labels: Sequence[str],
        *,
        size: int,
        seed: int,
        augmentation: SoundAugmentation,
    ) -> None:
        super().__init__(sounds, size=size, seed=seed, augmentation=augmentation)
        self.truth: Bool[np.ndarray, "sounds labels"] = label_matrix(sounds.files, labels, "the model", SOUNDS)

    def target_bytes(self) -> bytes:
        """The labels of the sounds."""
        return np.packbits(self.truth).tobytes()

    def least_frames(self, index: int) -> int:
        """A sound of any length has its label."""
        return 1

    def truth_of(self, batch: NumberedBatch, rows: Indices) -> Tensor:
        """The labels of the ``rows`` of a batch, (rows, labels)."""
        return torch.from_numpy(self.truth[batch.examples[rows]])


_BATCH = 64


@final
class SoundClassificationTask(SoundTask[SoundClassificationRecipe]):
    """Training a sound classifier by ``recipe``.

    ``prepare`` makes the choices that the recipe leaves open, and reports them. It sets ``batches`` to the training
    sounds, ``held_out`` to the validation sounds and ``metric`` to what decides which weights are best. ``build`` makes
    a new model; another function than the default, which builds a Conformer, trains another architecture.
    """

    model: AudioEncoder
    batches: Batches
    held_out: Batches
    metric: str
    unit = "sounds"

    def __init__(self, recipe: SoundClassificationRecipe, *, build: Build = build_conformer) -> None:
        super().__init__(recipe)
        self._build = build
        self._weights: Tensor | None = None

    def prepare(self, context: RunContext) -> None:
        """Read and decode the sounds, hold some out, and make or load the model.

        Raises DataError for data that cannot be used, OptionError for an invalid recipe, CheckpointError for a model
        that cannot be started from.
        """
        recipe, say, seed = self._recipe, context.say, context.settings.seed
        start = self._load_start(context)
        named = sounds = read_and_report_labelled(recipe.data, SOUNDS, recipe.where.columns, say)
        validation = recipe.validation
        others = read_and_report_labelled(validation, SOUNDS, recipe.where.columns, say) if validation else []
        labels = find_labels(sounds, SOUNDS)
        if start is None:
            sounds = self._build_model(sounds, say)
        else:
            self.model = with_labels(start, labels)
            report_replaced_head(str(recipe.start), start.labels, labels, is_kept=self.model is start, say=say)
        processor, labels = self._processor, self.model.labels
        say(f"the model: {describe_model(recipe, self._size, self.model, processor)}")
        check_labels(others, labels, "the training data", SOUNDS)
        augmentation = recipe.augmentation()
        self._split(sounds, others, augmentation, seed=seed, say=say)
        report_lost_labels(named, self.batches.examples.decoded.files, SOUNDS, say)
        for sentence in describe_labels(
            labels, [(one.label,) for one in self.batches.examples.files], several=False, things="sounds"
        ):
            say(sentence)
        say(f"augmentation: {augmentation}")
        self.metric = choose_metric(recipe.metric, self.held_out.truth, labels, SOUNDS, say)
        if recipe.class_weights == "balanced":
            self._weights = balanced_weights(self.batches.truth, several=False)
        try_model(self.model, self.batches)

    def tokens(self, batch: NumberedBatch) -> int:
        """The number of sounds of a batch."""
        return len(batch)

    def loss_of(self, output: AudioEncoderOutput, batch: NumberedBatch, rows: Indices) -> Tensor:
        """The sum of the losses of the ``rows`` of a batch, a scalar."""
        assert output.logits is not None
        truth = self.batches.truth_of(batch, rows).to(output.logits.device)
        return label_loss(output.logits, truth, several=False, smoothing=self._recipe.smoothing, weights=self._weights)

    def validate(self, model: nn.Module) -> Validation:
        """Measure accuracy, F1, loss and calibration error on the validation sounds."""
        assert isinstance(model, AudioEncoder)
        probabilities = np.zeros(self.held_out.truth.shape)
        for rows in self.held_out.by_length(_BATCH):
            features, mask = self.held_out.read(rows)
            logits = model(features.to(model.device), mask=mask).logits
            assert logits is not None
            probabilities[rows] = logits.double().softmax(1).cpu().numpy()
        return validate_labels(
            probabilities, self.held_out.truth, model.labels, self.held_out.examples.files, SOUNDS, metric=self.metric
        )

    def baseline(self) -> float | None:
        """The score of a model that gives each label its frequency as the probability."""
        return baseline_score(self.held_out.truth, self.model.labels, self.metric)

    def describe(self, score: float) -> str:
        """Format a score, for example "accuracy 0.914 on held-out sounds"."""
        return describe_score(score, self.metric, SOUNDS)

    def _build_model(self, sounds: list[LabelledFile], say: Say) -> list[LabelledFile]:
        """Build a new model for these sounds, and return those whose headers can be read."""
        good, processor = self._choose_processor(sounds, say)
        self._size = choose_size(len(good), self._recipe.model)
        self.model = self._build(self._recipe, self._size, bands=processor.mels, labels=find_labels(good, SOUNDS))
        self.model.processor = processor
        return good

    def _split(
        self,
        sounds: list[LabelledFile],
        others: list[LabelledFile],
        augmentation: SoundAugmentation,
        *,
        seed: int,
        say: Say,
    ) -> None:
        """Decode the sounds, and set the batches for training and for validation."""
        recipe, processor, labels = self._recipe, self._processor, self.model.labels
        whole, other = decode_sounds(sounds, others, processor, memory=recipe.memory, skip_bad=recipe.skip_bad, say=say)
        named = [one.label for one in whole.files]
        report_conflicts(whole.digests, whole.files, named, SOUNDS, say)
        training, held = split_files(whole, other, [(one,) for one in named], SOUNDS, seed=seed, say=say)
        self.batches, self.held_out = (
            Batches(one, labels, size=recipe.batch, seed=seed, augmentation=own)
            for one, own in ((training, augmentation), (held, SoundAugmentation()))
        )
        find_labels(training.files, SOUNDS)
