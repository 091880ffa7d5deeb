"""From sources of labelled pictures to training and validation pictures: read, decode, hold out.

Batches of labelled pictures. If pictures are mixed, a process also changes the partners of its rows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, final

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.media import LabelledFile, read_and_report_labelled
from regard.tasks.decoded_files import FileSet
from regard.tasks.file_task import LabelledBatches, split_labelled
from regard.tasks.image_classification.recipe import ImageClassificationRecipe
from regard.tasks.numbered_batches import NumberedBatch
from regard.tasks.picture_batches import PictureBatches, decode_pictures
from regard.tasks.sentences import Indices
from regard.vision import ImageProcessor
from regard.vision.augmentation import mix_pictures
from regard.vision.picture_file import PICTURES

PictureSet: TypeAlias = FileSet[LabelledFile, np.ndarray]
"""Labelled pictures and their pixels."""


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
class Batches(PictureBatches[LabelledFile], LabelledBatches):
    """Batches of labelled pictures."""

    def augment(self, batch: NumberedBatch, rows: Indices, device: torch.device) -> PictureBatch:
        """Read and augment the ``rows`` of a batch, and mix them with their partners."""
        draws = self.draw(batch)
        mix = draws.mix
        truth = self.truth_of(batch, rows).to(device)
        if mix is None:
            return PictureBatch(self.change(batch, draws, rows, device), truth)
        needed = np.union1d(rows, mix.partner[rows])
        changed = self.change(batch, draws, needed, device)
        begin = time.monotonic()
        own, partners = (torch.from_numpy(np.searchsorted(needed, one)) for one in (rows, mix.partner[rows]))
        other = self.truth_of(batch, mix.partner[rows]).to(device)
        mixed = mix_pictures(changed[own], changed[partners], mix)
        self.augmented += time.monotonic() - begin
        return PictureBatch(mixed, truth, mix.share, other)


def read_pictures(recipe: ImageClassificationRecipe, paths: Sequence[Path]) -> list[LabelledFile]:
    """Read the labelled pictures of the sources. Raises DataError for sources that cannot be used."""
    return read_and_report_labelled(paths, PICTURES, recipe.where.columns)


def split_pictures(
    recipe: ImageClassificationRecipe,
    pictures: Sequence[LabelledFile],
    validation: Sequence[LabelledFile],
    processor: ImageProcessor,
    *,
    seed: int,
) -> tuple[PictureSet, PictureSet]:
    """Decode the pictures, and return those for training and for validation; ``seed`` decides which are held out.

    Copies of a picture are held out together. Raises DataError for broken pictures, and for too few to hold any out.
    """
    decoded = decode_pictures(pictures, validation, processor, memory=recipe.memory, skip_bad=recipe.skip_bad)
    return split_labelled(*decoded, PICTURES, seed=seed)
