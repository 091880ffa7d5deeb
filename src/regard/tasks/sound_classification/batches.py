"""Batches of sounds with the labels that a model has."""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from regard.audio.sound_augmentation import SoundAugmentation
from regard.media import LabelledFile
from regard.tasks.labelled_media import make_truth
from regard.tasks.numbered_batches import NumberedBatch
from regard.tasks.sentences import Indices
from regard.tasks.sound_batches import SoundBatches
from regard.tasks.sound_features import SoundFeatures


@final
class Batches(SoundBatches[LabelledFile]):
    """Batches of labelled sounds; ``truth`` (sounds, labels) is True where a sound has a label."""

    def __init__(
        self,
        features: SoundFeatures[LabelledFile],
        chosen: Indices,
        labels: tuple[str, ...],
        *,
        size: int,
        seed: int,
        augmentation: SoundAugmentation,
    ) -> None:
        super().__init__(features, chosen, size=size, seed=seed, augmentation=augmentation)
        self.truth: Bool[np.ndarray, "sounds labels"] = make_truth(self.sounds, labels)

    def target_bytes(self) -> bytes:
        """The labels of the sounds."""
        return np.packbits(self.truth).tobytes()

    def least_frames(self, index: int) -> int:
        """A sound of any length has its label."""
        return 1

    def truth_of(self, batch: NumberedBatch, rows: Indices) -> Tensor:
        """The labels of the ``rows`` of a batch, (rows, labels)."""
        return torch.from_numpy(self.truth[batch.examples[rows]])
