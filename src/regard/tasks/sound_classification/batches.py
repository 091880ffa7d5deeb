"""Batches of sounds of similar length, in an order by (seed, epoch), augmented by (seed, epoch, batch, row).

    an epoch    shuffle the sounds, cut them into pools of 50 batches, sort each pool by length (ties stay shuffled),
                cut it into batches, and shuffle all batches

So an interrupted run resumes with exactly the next batch, changed in exactly the same way, and each process can change
the rows that it computes alone.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from regard.audio import AudioFeatures, pad_features
from regard.audio.sound_augmentation import SoundAugmentation
from regard.media import LabelledFile
from regard.tasks.labelled_media import make_truth
from regard.tasks.sentences import Indices
from regard.tasks.sound_classification.features import SoundFeatures

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


@final
class Batches:
    """The batches of the sounds ``chosen`` among those of ``features``, with the labels that a model has.

    ``truth`` (sounds, labels) is True where a sound has a label; ``augmented`` counts the seconds of augmentation.
    """

    def __init__(
        self,
        features: SoundFeatures,
        chosen: Indices,
        labels: tuple[str, ...],
        *,
        size: int,
        seed: int,
        augmentation: SoundAugmentation,
    ) -> None:
        self.features, self.chosen, self.size, self.seed = features, chosen, size, seed
        self.augmentation, self.augmented = augmentation, 0.0
        self.truth: Bool[np.ndarray, "sounds labels"] = make_truth(self.sounds, labels)

    @property
    def sounds(self) -> list[LabelledFile]:
        """The chosen sounds."""
        return [self.features.sounds[index] for index in self.chosen.tolist()]

    @property
    def digest(self) -> str:
        """SHA-256 of all features and labels, in order, by which a resumed run recognises its data."""
        digest = hashlib.sha256("".join(self.features.digests[index] for index in self.chosen.tolist()).encode())
        digest.update(np.packbits(self.truth).tobytes())
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.chosen)

    def epoch(self, number: int) -> list[BatchIndices]:
        """The batches of epoch ``number`` (from 0), in order."""
        generator, lengths = np.random.default_rng([self.seed, number]), self.features.lengths[self.chosen]
        shuffled, batches = generator.permutation(len(self)), []
        for begin in range(0, len(shuffled), self.size * _POOL_BATCHES):
            pool = shuffled[begin : begin + self.size * _POOL_BATCHES]
            pool = pool[np.argsort(lengths[pool], kind="stable")]
            batches += [pool[at : at + self.size] for at in range(0, len(pool), self.size)]
        order = generator.permutation(len(batches)).tolist()
        return [BatchIndices(number, place, batches[index]) for place, index in enumerate(order)]

    def ask(self, epoch: list[BatchIndices], after: int) -> None:
        """Begin to decode the batches of an epoch that follow the batch number ``after``."""
        for batch in epoch[after + 1 : after + 1 + _AHEAD]:
            self.features.ask(self.chosen[batch.sounds])

    def augment(self, batch: BatchIndices, rows: Indices) -> AudioFeatures:
        """Read and augment the ``rows`` of a batch."""
        found = self.features.take(self.chosen[batch.sounds[rows]])
        begin, changed = time.monotonic(), []
        for row, one in zip(rows.tolist(), found, strict=True):
            generator = np.random.default_rng([self.seed, batch.epoch, batch.number, row])
            changed.append(self.augmentation.apply(one, generator))
        self.augmented += time.monotonic() - begin
        return pad_features(changed)

    def by_length(self, size: int) -> list[Indices]:
        """Every sound once, in batches of ``size``, the longest first, for validation."""
        order = np.argsort(-self.features.lengths[self.chosen], kind="stable")
        return [order[at : at + size] for at in range(0, len(order), size)]

    def read(self, sounds: Indices) -> AudioFeatures:
        """The features of sounds as they are."""
        return pad_features(self.features.take(self.chosen[sounds]))

    def truth_of(self, batch: BatchIndices, rows: Indices) -> Tensor:
        """The labels of the ``rows`` of a batch, (rows, labels)."""
        return torch.from_numpy(self.truth[batch.sounds[rows]])
