"""From sources of labelled pictures to training and validation pictures: read, decode, hold out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

import numpy as np

from regard.media import LabelledFile
from regard.tasks.image_classification.recipe import ImageClassificationRecipe
from regard.tasks.labelled_media import Say, hold_out_files, report_conflicts, report_validation
from regard.tasks.picture_pixels import PicturePixels, decode_pictures
from regard.tasks.sentences import Indices
from regard.vision import ImageProcessor
from regard.vision.labelled import read_and_report_labelled_pictures
from regard.vision.picture_file import PICTURES


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
    return read_and_report_labelled_pictures(paths, recipe.where.columns, say)


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
