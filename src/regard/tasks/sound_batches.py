"""Batches of sounds of similar length, augmented by (seed, epoch, batch, row), and what their headers say.

Each process can change the rows that it computes alone.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.audio import AudioFeatures, AudioProcessor, pad_features
from regard.audio.sound_augmentation import SoundAugmentation
from regard.audio.sound_file import SOUNDS, read_sampling_rate
from regard.copy_to_device import copy_to
from regard.errors import DataError
from regard.tasks.decoded_files import DecodedFiles, Entry, FileBatches, FileSet, decode_both
from regard.tasks.labelled_data import report_bad_files
from regard.tasks.numbered_batches import BatchesByLength, NumberedBatch
from regard.tasks.sentences import Indices

Features = Float[Tensor, "_ _"]


def read_rates(sounds: Sequence[Entry], *, max_seconds: float, skip_bad: bool) -> tuple[list[Entry], list[int]]:
    """Read the headers: the readable sounds, and the sampling rate of each.

    Raises DataError with the names of sounds whose headers cannot be read, unless ``skip_bad``.
    """
    good, rates, problems = [], [], []
    for sound in sounds:
        assert isinstance(sound.content, Path)
        try:
            rate = read_sampling_rate(sound.content, name=sound.place, max_seconds=max_seconds)
        except DataError as error:
            problems.append(error)
            continue
        good.append(sound)
        rates.append(rate)
    report_bad_files(problems, len(sounds), SOUNDS, skip_bad=skip_bad)
    return good, rates


def decode_sounds(
    sounds: Sequence[Entry], others: Sequence[Entry], processor: AudioProcessor, *, memory: float, skip_bad: bool
) -> tuple[DecodedFiles[Entry, Features], DecodedFiles[Entry, Features] | None]:
    """Decode the training sounds and the validation sounds ``others``, None if there are none: see ``decode_both``."""

    def decode(sound: Entry) -> Features:
        assert isinstance(sound.content, Path)
        return processor.to_features(sound.content, name=sound.place)

    return decode_both(sounds, others, decode, SOUNDS, inputs="features", memory=memory, skip_bad=skip_bad)


class SoundBatches(BatchesByLength, FileBatches[Entry, Features]):
    """Batches of sounds. A subclass adds what is to be learned of each sound."""

    def __init__(
        self, examples: FileSet[Entry, Features], *, size: int, seed: int, augmentation: SoundAugmentation
    ) -> None:
        super().__init__(examples, size=size, seed=seed)
        self.augmentation = augmentation
        self._lengths = examples.decoded.lengths[examples.chosen]

    @property
    def lengths(self) -> Indices:
        """The frames of each sound."""
        return self._lengths

    @abstractmethod
    def least_frames(self, index: int) -> int:
        """The frames that augmentation must leave of the sound with this index into the examples."""

    def augment(self, batch: NumberedBatch, rows: Indices) -> AudioFeatures:
        """Read and augment the ``rows`` of a batch."""
        indices = batch.examples[rows]
        found = self.examples.take(indices)
        begin, changed = time.monotonic(), []
        for row, index, features in zip(rows.tolist(), indices.tolist(), found, strict=True):
            generator = np.random.default_rng([self.seed, batch.epoch, batch.number, row])
            changed.append(self.augmentation.apply(features, generator, least_frames=self.least_frames(index)))
        self.augmented += time.monotonic() - begin
        return pad_features(changed)

    def inputs(self, examples: Indices, device: torch.device) -> Mapping[str, Any]:
        """The features of sounds, and their mask."""
        features, mask = pad_features(self.examples.take(examples))
        return {"features": copy_to(features, device), "mask": mask}
