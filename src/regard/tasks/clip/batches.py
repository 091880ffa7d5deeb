"""Batches of pairs, in an order that depends on (seed, epoch), with pictures augmented by (seed, epoch, batch).

So an interrupted run resumes with exactly the next batch, changed in exactly the same way. The numbers of a whole batch
are drawn in each process, and a process reads the rows that it computes.
"""

from __future__ import annotations

import hashlib
import time
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard import masks
from regard.tasks.clip.data import PicturesWithTexts
from regard.tasks.numbered_batches import LatestEpoch, NumberedBatch, batches_after, shuffled_batches
from regard.tasks.sentences import Indices, Sentences, pad_rows
from regard.vision.augmentation import Augmentation


@final
class Batches:
    """The batches of ``pairs``, whose texts have the token ids ``ids``, padded with ``pad_id``.

    ``augmented`` counts the seconds that augmentation took.
    """

    def __init__(
        self,
        pairs: PicturesWithTexts,
        ids: Sentences,
        *,
        pad_id: int,
        size: int,
        seed: int,
        augmentation: Augmentation,
    ) -> None:
        self.pairs, self.ids, self.pad_id, self.size, self.seed = pairs, ids, pad_id, size, seed
        self.augmentation, self.augmented = augmentation, 0.0
        self._text_number = _number(pairs.texts)
        self._picture_number = _number(pairs.digests)
        self._latest_epoch = LatestEpoch[NumberedBatch]()

    @property
    def digest(self) -> str:
        """SHA-256 of all pixels and texts, in order, by which a resumed run recognises its data."""
        digest = hashlib.sha256("".join(self.pairs.digests).encode())
        digest.update("\0".join(self.pairs.texts).encode())
        return digest.hexdigest()

    def epoch(self, number: int) -> list[NumberedBatch]:
        """The batches of epoch ``number`` (from 0), in order."""
        return self._latest_epoch.get_or_draw(
            number, lambda epoch: shuffled_batches(len(self.pairs), self.size, seed=self.seed, epoch=epoch)
        )

    def ask_after(self, batch: NumberedBatch) -> None:
        """Begin to decode the batches that follow a batch in its epoch."""
        for one in batches_after(self.epoch(batch.epoch), batch):
            self.pairs.pixels.ask(self.pairs.picture_of[one.examples])

    def augment(
        self, batch: NumberedBatch, rows: Indices, device: torch.device
    ) -> Float[Tensor, "rows channels height width"]:
        """The model input of the pictures of the ``rows`` of a batch, augmented."""
        processor = self.pairs.pixels.processor
        generator = np.random.default_rng([self.seed, batch.epoch, batch.number])
        assert processor.picture_size is not None
        draws = self.augmentation.draw(generator, len(batch), *processor.picture_size)
        pixels = self._take(self.pairs.picture_of[batch.examples[rows]], device)
        begin = time.monotonic()
        changed = self.augmentation.apply(pixels, draws, rows, fill=processor.mean_colour)
        self.augmented += time.monotonic() - begin
        return processor.normalise(changed)

    def read_pictures(self, pictures: Indices, device: torch.device) -> Float[Tensor, "rows channels height width"]:
        """The model input of pictures, by their own indices, as they are."""
        return self.pairs.pixels.processor.normalise(self._take(pictures, device))

    def read_texts(self, pairs: Indices) -> tuple[Int[Tensor, "rows length"], masks.Mask]:
        """The token ids of the texts of pairs, and the mask that hides padding."""
        return pad_rows(self.ids, pairs, self.pad_id), masks.padding(self.ids.lengths[pairs].tolist())

    def find_same(self, batch: NumberedBatch, rows: Indices) -> Bool[Tensor, "rows batch"]:
        """True where a row and a pair of the batch have the same picture or the same text."""
        pairs = batch.examples
        same = [number[pairs[rows], None] == number[pairs] for number in (self._text_number, self._picture_number)]
        return torch.from_numpy(same[0] | same[1])

    def _take(self, pictures: Indices, device: torch.device) -> Float[Tensor, "rows channels height width"]:
        pixels = self.pairs.pixels
        return pixels.processor.rescale_pixels(pixels.take(pictures).to(device))


def _number(values: tuple[str, ...]) -> Indices:
    """The number of each value, equal for equal values."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(one, len(known)) for one in values], dtype=np.int64)
