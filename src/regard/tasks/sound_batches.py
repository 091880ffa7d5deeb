"""Batches of sounds of similar length, in an order by (seed, epoch), augmented by (seed, epoch, batch, row).

    an epoch    shuffle the sounds, cut them into pools of 50 batches, sort each pool by length (ties stay shuffled),
                cut it into batches, and shuffle all batches

So an interrupted run resumes with exactly the next batch, changed in exactly the same way, and each process can change
the rows that it computes alone.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar, final

import numpy as np

from regard.audio import AudioFeatures, pad_features
from regard.audio.sound_augmentation import SoundAugmentation
from regard.media import MediaFile
from regard.tasks.sentences import Indices
from regard.tasks.sound_features import SoundFeatures

Entry = TypeVar("Entry", bound=MediaFile)

_AHEAD = 3
"""Batches that are decoded ahead."""
_POOL_BATCHES = 50


@final
@dataclass(frozen=True, eq=False)
class BatchIndices:
    """A batch before its sounds are read: the ``number`` of the batch in its ``epoch``, and indices into a set."""

    epoch: int
    number: int
    sounds: Indices

    def __len__(self) -> int:
        return len(self.sounds)


class SoundBatches(ABC, Generic[Entry]):
    """The batches of the sounds ``chosen`` among those of ``features``, ``size`` sounds at a time.

    ``augmented`` counts the seconds of augmentation. A subclass adds what is to be learned of each sound.
    """

    def __init__(
        self,
        features: SoundFeatures[Entry],
        chosen: Indices,
        *,
        size: int,
        seed: int,
        augmentation: SoundAugmentation,
    ) -> None:
        self.features, self.chosen, self.size, self.seed = features, chosen, size, seed
        self.augmentation, self.augmented = augmentation, 0.0
        self._cached_epoch: tuple[int, list[BatchIndices]] = (-1, [])

    @abstractmethod
    def target_bytes(self) -> bytes:
        """What is to be learned of the sounds, in order, for ``digest``."""

    @abstractmethod
    def least_frames(self, index: int) -> int:
        """The frames that augmentation must leave of the sound with this index into the set."""

    @property
    def sounds(self) -> list[Entry]:
        """The chosen sounds."""
        return [self.features.sounds[index] for index in self.chosen.tolist()]

    @property
    def digest(self) -> str:
        """SHA-256 of all features and targets, in order, by which a resumed run recognises its data."""
        digest = hashlib.sha256("".join(self.features.digests[index] for index in self.chosen.tolist()).encode())
        digest.update(self.target_bytes())
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.chosen)

    def epoch(self, number: int) -> list[BatchIndices]:
        """The batches of epoch ``number`` (from 0), in order."""
        if self._cached_epoch[0] != number:
            self._cached_epoch = number, self._draw_epoch(number)
        return self._cached_epoch[1]

    def ask_after(self, batch: BatchIndices) -> None:
        """Begin to decode the batches that follow a batch in its epoch."""
        for one in self.epoch(batch.epoch)[batch.number + 1 : batch.number + 1 + _AHEAD]:
            self.features.ask(self.chosen[one.sounds])

    def augment(self, batch: BatchIndices, rows: Indices) -> AudioFeatures:
        """Read and augment the ``rows`` of a batch."""
        indices = batch.sounds[rows]
        found = self.features.take(self.chosen[indices])
        begin, changed = time.monotonic(), []
        for row, index, one in zip(rows.tolist(), indices.tolist(), found, strict=True):
            generator = np.random.default_rng([self.seed, batch.epoch, batch.number, row])
            changed.append(self.augmentation.apply(one, generator, least_frames=self.least_frames(index)))
        self.augmented += time.monotonic() - begin
        return pad_features(changed)

    def by_length(self, size: int) -> list[Indices]:
        """Every sound once, in batches of ``size``, the longest first, for validation."""
        order = np.argsort(-self.features.lengths[self.chosen], kind="stable")
        return [order[at : at + size] for at in range(0, len(order), size)]

    def read(self, sounds: Indices) -> AudioFeatures:
        """The features of sounds as they are."""
        return pad_features(self.features.take(self.chosen[sounds]))

    def _draw_epoch(self, number: int) -> list[BatchIndices]:
        generator, lengths = np.random.default_rng([self.seed, number]), self.features.lengths[self.chosen]
        shuffled, batches = generator.permutation(len(self)), []
        for begin in range(0, len(shuffled), self.size * _POOL_BATCHES):
            pool = shuffled[begin : begin + self.size * _POOL_BATCHES]
            pool = pool[np.argsort(lengths[pool], kind="stable")]
            batches += [pool[at : at + self.size] for at in range(0, len(pool), self.size)]
        order = generator.permutation(len(batches)).tolist()
        return [BatchIndices(number, place, batches[index]) for place, index in enumerate(order)]
