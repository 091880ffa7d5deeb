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
from typing import Generic, TypeVar

import numpy as np

from regard.audio import AudioFeatures, pad_features
from regard.audio.sound_augmentation import SoundAugmentation
from regard.media import MediaFile
from regard.tasks.numbered_batches import LatestEpoch, NumberedBatch, batches_after, number_batches
from regard.tasks.sentences import Indices
from regard.tasks.sound_features import SoundFeatures

Entry = TypeVar("Entry", bound=MediaFile)

_POOL_BATCHES = 50


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
        self._latest_epoch = LatestEpoch[NumberedBatch]()

    @abstractmethod
    def target_bytes(self) -> bytes:
        """The targets of the sounds, in order, for ``digest``."""

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

    def epoch(self, number: int) -> list[NumberedBatch]:
        """The batches of epoch ``number`` (from 0), in order."""
        return self._latest_epoch.get_or_draw(number, self._draw_epoch)

    def ask_after(self, batch: NumberedBatch) -> None:
        """Begin to decode the batches that follow a batch in its epoch."""
        for one in batches_after(self.epoch(batch.epoch), batch):
            self.features.ask(self.chosen[one.examples])

    def augment(self, batch: NumberedBatch, rows: Indices) -> AudioFeatures:
        """Read and augment the ``rows`` of a batch."""
        indices = batch.examples[rows]
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

    def _draw_epoch(self, number: int) -> list[NumberedBatch]:
        generator, lengths = np.random.default_rng([self.seed, number]), self.features.lengths[self.chosen]
        shuffled, batches = generator.permutation(len(self)), []
        for begin in range(0, len(shuffled), self.size * _POOL_BATCHES):
            pool = shuffled[begin : begin + self.size * _POOL_BATCHES]
            pool = pool[np.argsort(lengths[pool], kind="stable")]
            batches += [pool[at : at + self.size] for at in range(0, len(pool), self.size)]
        order = generator.permutation(len(batches)).tolist()
        return number_batches(number, (batches[index] for index in order))
