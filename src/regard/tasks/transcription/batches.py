"""Batches of sounds with the texts that a model learns to write."""

from __future__ import annotations

from typing import final

from regard.audio.sound_augmentation import SoundAugmentation
from regard.media.files_with_texts import FileWithText
from regard.models.ctc import count_needed_tokens
from regard.tasks.numbered_batches import NumberedBatch
from regard.tasks.sentences import Indices
from regard.tasks.sound_batches import SoundBatches
from regard.tasks.sound_features import SoundFeatures
from regard.transcription.text_labels import TextLabels


@final
class Batches(SoundBatches[FileWithText]):
    """Batches of sounds with texts; ``targets`` are the numbers of their labels, None if the ``labels`` lack one.

    ``frames_per_token`` is that of the model, by which augmentation leaves enough frames for each text.
    """

    def __init__(
        self,
        features: SoundFeatures[FileWithText],
        chosen: Indices,
        labels: TextLabels,
        *,
        frames_per_token: int,
        size: int,
        seed: int,
        augmentation: SoundAugmentation,
    ) -> None:
        super().__init__(features, chosen, size=size, seed=seed, augmentation=augmentation)
        self.frames_per_token = frames_per_token
        self.targets = [labels.encode(one.text) for one in self.sounds]

    def target_bytes(self) -> bytes:
        """The texts of the sounds."""
        return "\0".join(one.text for one in self.sounds).encode()

    def least_frames(self, index: int) -> int:
        """The least frames of as many tokens as the text needs."""
        return (count_needed_tokens(self._target(index)) - 1) * self.frames_per_token + 1

    def count_labels(self, batch: NumberedBatch) -> int:
        """The number of labels of the texts of a batch."""
        return sum(len(self._target(index)) for index in batch.examples.tolist())

    def targets_of(self, batch: NumberedBatch, rows: Indices) -> list[list[int]]:
        """The targets of the ``rows`` of a batch."""
        return [self._target(index) for index in batch.examples[rows].tolist()]

    def _target(self, index: int) -> list[int]:
        target = self.targets[index]
        assert target is not None, "a training text is written with labels of the model"
        return target
