"""Batches of sounds of similar length, in an order by (seed, epoch), augmented by (seed, epoch, batch, row).

    an epoch    shuffle the sounds, cut them into pools of 50 batches, sort each pool by length (ties stay shuffled),
                cut it into batches, and shuffle all batches

So an interrupted run resumes with exactly the next batch, changed in exactly the same way, and each process can change
the rows that it computes alone.

The features of sounds for training: computed once and kept, or computed again in background threads.

Every sound is decoded before training begins, so a broken one is found then, and not hours later.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Generic, TypeVar, final

import numpy as np
from jaxtyping import Float
from torch import Tensor

from regard.audio import AudioFeatures, AudioProcessor, pad_features
from regard.audio.sound_augmentation import SoundAugmentation
from regard.audio.sound_file import SOUNDS, read_sampling_rate
from regard.errors import DataError
from regard.media import MediaFile
from regard.tasks.labelled_media import Say, report_bad_files
from regard.tasks.numbered_batches import (
    LatestEpoch,
    NumberedBatch,
    ReadAhead,
    batches_after,
    number_batches,
    start_threads,
)
from regard.tasks.sentences import Indices

_GIGABYTE = 10**9
_FEATURE_BYTES = 4

Features = Float[Tensor, "_ _"]
Entry = TypeVar("Entry", bound=MediaFile)


@final
class SoundFeatures(Generic[Entry]):
    """The features of ``sounds``, made by ``processor``, all of which can be decoded.

    ``lengths`` (sounds,) are their frames, and ``digests`` tell sounds of the same features. ``waited`` counts the
    seconds in which ``take`` waited for sounds to be decoded.
    """

    def __init__(
        self,
        sounds: Sequence[Entry],
        processor: AudioProcessor,
        digests: Sequence[str],
        lengths: Sequence[int],
        kept: Sequence[Features] | None,
    ) -> None:
        self.sounds, self.processor, self.digests = list(sounds), processor, list(digests)
        self.lengths, self.kept, self.waited = np.array(lengths, dtype=np.int64), kept, 0.0
        self._ahead = ReadAhead(self._decode) if kept is None else None

    def ask(self, sounds: Indices) -> None:
        """Begin to decode the sounds with these indices, which ``take`` will want."""
        if self._ahead is not None:
            self._ahead.ask(sounds)

    def take(self, sounds: Indices) -> list[Features]:
        """The features of the sounds with these indices. Raises DataError for a sound that became unreadable."""
        begin = time.monotonic()
        if self._ahead is None:
            assert self.kept is not None
            found = [self.kept[index] for index in sounds.tolist()]
        else:
            found = self._ahead.take(sounds)
        self.waited += time.monotonic() - begin
        return found

    def _decode(self, index: int) -> Features:
        return _to_features(self.sounds[index], self.processor)


def read_rates(
    sounds: Sequence[Entry], *, max_seconds: float, skip_bad: bool, say: Say
) -> tuple[list[Entry], list[int]]:
    """Read the headers: the readable sounds, and the sampling rate of each.

    Raises DataError with the names of sounds whose headers cannot be read, unless ``skip_bad``.
    """
    good, rates, problems = [], [], []
    for one in sounds:
        assert isinstance(one.content, Path)
        try:
            rate = read_sampling_rate(one.content, name=one.place, max_seconds=max_seconds)
        except DataError as error:
            problems.append(error)
            continue
        good.append(one)
        rates.append(rate)
    report_bad_files(problems, len(sounds), SOUNDS, skip_bad=skip_bad, say=say)
    return good, rates


def decode_sounds(
    sounds: Sequence[Entry], processor: AudioProcessor, *, memory: float, skip_bad: bool, say: Say
) -> SoundFeatures[Entry]:
    """Decode all sounds, and keep their features if they take at most ``memory`` gigabytes.

    Raises DataError with the names of broken sounds, unless ``skip_bad``, which reports them and leaves them out.
    """
    keep, size = True, 0
    kept, digests, lengths, problems, good = [], [], [], [], []

    def read(one: Entry) -> Features | DataError:
        try:
            return _to_features(one, processor)
        except DataError as error:
            return error

    with start_threads() as pool:
        for one, found in zip(sounds, pool.map(read, sounds), strict=True):
            if isinstance(found, DataError):
                problems.append(found)
                continue
            good.append(one)
            digests.append(hashlib.blake2b(found.numpy().tobytes(), digest_size=16).hexdigest())
            lengths.append(len(found))
            size += found.numel() * _FEATURE_BYTES
            keep = keep and size <= memory * _GIGABYTE
            if keep:
                kept.append(found)
            else:
                kept.clear()
    report_bad_files(problems, len(sounds), SOUNDS, skip_bad=skip_bad, say=say)
    if not keep:
        say(
            f"{size / _GIGABYTE:.1f} GB of features are more than `memory={memory:g}`: "
            "sounds are decoded again in each epoch"
        )
    return SoundFeatures(good, processor, digests, lengths, kept if keep else None)


def decode_both(
    sounds: Sequence[Entry],
    others: Sequence[Entry],
    processor: AudioProcessor,
    *,
    memory: float,
    skip_bad: bool,
    say: Say,
) -> tuple[SoundFeatures[Entry], SoundFeatures[Entry] | None]:
    """Decode the training sounds and the validation sounds ``others``, None if there are none: see ``decode_sounds``.

    Each set has its share of the memory.
    """
    share = memory * len(sounds) / (len(sounds) + len(others))
    features = decode_sounds(sounds, processor, memory=share, skip_bad=skip_bad, say=say)
    if not others:
        return features, None
    return features, decode_sounds(others, processor, memory=memory - share, skip_bad=skip_bad, say=say)


def _to_features(one: MediaFile, processor: AudioProcessor) -> Features:
    assert isinstance(one.content, Path)
    return processor.to_features(one.content, name=one.place)


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
