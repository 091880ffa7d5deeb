"""From sources of labelled pictures to training and validation pictures: read, decode, hold out.

Batches of pictures, in an order that depends on (seed, epoch), and their augmentation by (seed, epoch, batch).

So an interrupted run resumes with exactly the next batch, changed in exactly the same way. The numbers of a whole batch
are drawn in each process, and a process changes the rows that it computes and, if pictures are mixed, their partners.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.media import LabelledFile, read_and_report_labelled
from regard.tasks.image_classification.recipe import ImageClassificationRecipe
from regard.tasks.labelled_media import Say, hold_out_files, report_conflicts, report_validation
from regard.tasks.numbered_batches import LatestEpoch, NumberedBatch, batches_after, shuffled_batches
from regard.tasks.picture_pixels import PicturePixels, decode_pictures
from regard.tasks.sentences import Indices
from regard.vision import ImageProcessor
from regard.vision.augmentation import Augmentation, Mix, mix_pictures
from regard.vision.picture_file import PICTURES


@final
@dataclass(frozen=True, eq=False)
class PictureBatch:
    """Pictures to learn from.

    pixels (rows, channels, height, width)      0 to 1, augmented and mixed; ``Batches.normalise`` follows
    truth (rows, labels)                        True where a picture has a label
    share, other (rows, labels)                 of mixed pictures the share of their own label, and the other label
    """

    pixels: Float[Tensor, "rows channels height width"]
    truth: Bool[Tensor, "rows labels"]
    share: float = 1.0
    other: Bool[Tensor, "rows labels"] | None = None


@final
class Batches:
    """The batches of ``pictures``; ``truth`` (pictures, labels) is True where a picture has a label.

    ``augmented`` counts the seconds that augmentation took.
    """

    def __init__(
        self,
        pictures: PictureSet,
        truth: Bool[np.ndarray, "pictures labels"],
        *,
        size: int,
        seed: int,
        augmentation: Augmentation,
    ) -> None:
        self.pictures, self.truth, self.size, self.seed = pictures, truth, size, seed
        self.augmentation, self.augmented = augmentation, 0.0
        self._latest_epoch = LatestEpoch[NumberedBatch]()

    @property
    def digest(self) -> str:
        """SHA-256 of all pixels and labels, in order, by which a resumed run recognises its data."""
        digest = hashlib.sha256("".join(self.pictures.digests).encode())
        digest.update(np.packbits(self.truth).tobytes())
        return digest.hexdigest()

    def epoch(self, number: int) -> list[NumberedBatch]:
        """The batches of epoch ``number`` (from 0), in order."""
        return self._latest_epoch.get_or_draw(
            number, lambda epoch: shuffled_batches(len(self.pictures), self.size, seed=self.seed, epoch=epoch)
        )

    def ask_after(self, batch: NumberedBatch) -> None:
        """Begin to decode the batches that follow a batch in its epoch."""
        for one in batches_after(self.epoch(batch.epoch), batch):
            self.pictures.pixels.ask(self.pictures.chosen[one.examples])

    def augment(self, batch: NumberedBatch, rows: Indices, device: torch.device) -> PictureBatch:
        """Read and augment the ``rows`` of a batch."""
        processor = self.pictures.pixels.processor
        generator = np.random.default_rng([self.seed, batch.epoch, batch.number])
        assert processor.picture_size is not None
        draws = self.augmentation.draw(generator, len(batch), *processor.picture_size)
        needed = rows if draws.mix is None else np.union1d(rows, draws.mix.partner[rows])
        pixels = self.read(batch.examples[needed], device)
        begin = time.monotonic()
        changed = self.augmentation.apply(pixels, draws, needed, fill=processor.mean_colour)
        made = self._mix(changed, batch, rows, needed, draws.mix)
        self.augmented += time.monotonic() - begin
        return made

    def read(self, pictures: Indices, device: torch.device) -> Float[Tensor, "rows channels height width"]:
        """The pixels of pictures, 0 to 1, as they are."""
        pixels = self.pictures.pixels.take(self.pictures.chosen[pictures])
        return self.pictures.pixels.processor.rescale_pixels(pixels.to(device))

    def normalise(self, pixels: Float[Tensor, "rows channels height width"]) -> Tensor:
        """Make the model input of pixels."""
        return self.pictures.pixels.processor.normalise(pixels)

    def _mix(
        self, changed: Tensor, batch: NumberedBatch, rows: Indices, needed: Indices, mix: Mix | None
    ) -> PictureBatch:
        truth = torch.from_numpy(self.truth[batch.examples[rows]]).to(changed.device)
        if mix is None:
            return PictureBatch(changed, truth)
        own, partners = (torch.from_numpy(np.searchsorted(needed, one)) for one in (rows, mix.partner[rows]))
        other = torch.from_numpy(self.truth[batch.examples[mix.partner[rows]]]).to(changed.device)
        return PictureBatch(mix_pictures(changed[own], changed[partners], mix), truth, mix.share, other)


@final
@dataclass(frozen=True, eq=False)
class PictureSet:
    """Some of the pictures of ``pixels``: those with the indices ``chosen``, and a digest of the pixels of each."""

    pixels: PicturePixels[LabelledFile]
    chosen: Indices
    digests: tuple[str, ...]

    @property
    def pictures(self) -> list[LabelledFile]:
        """The chosen pictures."""
        return [self.pixels.pictures[index] for index in self.chosen.tolist()]

    @property
    def labels(self) -> list[str]:
        """The label of each chosen picture."""
        return [one.label for one in self.pictures]

    def __len__(self) -> int:
        return len(self.chosen)


def read_pictures(recipe: ImageClassificationRecipe, paths: Sequence[Path], say: Say) -> list[LabelledFile]:
    """Read the labelled pictures of the sources. Raises DataError for sources that cannot be used."""
    return read_and_report_labelled(paths, PICTURES, recipe.where.columns, say)


def split_pictures(
    recipe: ImageClassificationRecipe,
    pictures: Sequence[LabelledFile],
    validation: Sequence[LabelledFile],
    processor: ImageProcessor,
    *,
    seed: int,
    say: Say,
) -> tuple[PictureSet, PictureSet]:
    """Decode the pictures, and return those for training and for validation; ``seed`` decides which are held out.

    Copies of a picture are held out together. Raises DataError for broken pictures, and for too few to hold any out.
    """
    decode = partial(decode_pictures, processor=processor, skip_bad=recipe.skip_bad, say=say)
    every = len(pictures) + len(validation)
    share = recipe.memory * len(pictures) / every
    decoded = decode(pictures, memory=share)
    report_conflicts(decoded.digests, decoded.pictures, [one.label for one in decoded.pictures], PICTURES, say)
    whole = PictureSet(decoded.pixels, np.arange(len(decoded.pictures)), tuple(decoded.digests))
    if validation:
        other = decode(validation, memory=recipe.memory - share)
        report_validation(decoded.digests, other.digests, PICTURES, say)
        return whole, PictureSet(other.pixels, np.arange(len(other.pictures)), tuple(other.digests))
    training, held = hold_out_files(
        decoded.digests, [(one.label,) for one in decoded.pictures], PICTURES, seed=seed, say=say
    )
    return _select(whole, training), _select(whole, held)


def _select(whole: PictureSet, chosen: Indices) -> PictureSet:
    return PictureSet(whole.pixels, chosen, tuple(whole.digests[index] for index in chosen.tolist()))
