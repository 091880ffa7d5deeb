"""From sources of labelled pictures to training and validation pictures: read, decode, hold out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, final

import numpy as np

from regard.errors import DataError
from regard.tasks.classification.validation_split import hold_out
from regard.tasks.image_classification.pixels import PicturePixels, decode_pictures, report_bad_pictures
from regard.tasks.image_classification.recipe import ImageClassificationRecipe
from regard.tasks.label_order import sort_labels
from regard.tasks.sentences import Indices
from regard.vision import ImageProcessor
from regard.vision.labelled import LabelledPicture, read_and_report_labelled_pictures
from regard.vision.picture_file import read_header

Say: TypeAlias = Callable[[str], None]


@final
@dataclass(frozen=True, eq=False)
class PictureSet:
    """Some of the pictures of ``pixels``: those with the indices ``chosen``, and a digest of the pixels of each."""

    pixels: PicturePixels
    chosen: Indices
    digests: tuple[str, ...]

    @property
    def pictures(self) -> list[LabelledPicture]:
        """The chosen pictures."""
        return [self.pixels.pictures[index] for index in self.chosen.tolist()]

    @property
    def labels(self) -> list[str]:
        """The label of each chosen picture."""
        return [one.label for one in self.pictures]

    def __len__(self) -> int:
        return len(self.chosen)


def read_pictures(recipe: ImageClassificationRecipe, paths: Sequence[Path], say: Say) -> list[LabelledPicture]:
    """Read the labelled pictures of the sources. Raises DataError for sources that cannot be used."""
    return read_and_report_labelled_pictures(paths, recipe.where.columns, say)


def measure_pictures(
    pictures: Sequence[LabelledPicture], *, skip_bad: bool, say: Say
) -> tuple[list[LabelledPicture], tuple[int, int], bool, bool]:
    """Read the headers: the readable pictures, their usual (height, width), whether all have it, whether all are grey.

    Raises DataError with the names of pictures whose headers cannot be read, unless ``skip_bad``.
    """
    good, sizes, problems, all_grey = [], [], [], True
    for one in pictures:
        try:
            height, width, is_grey = read_header(one.picture, name=one.place)
        except DataError as error:
            problems.append(error)
            continue
        good.append(one)
        sizes.append((height, width))
        all_grey &= is_grey
    report_bad_pictures(problems, len(pictures), skip_bad=skip_bad, say=say)
    height, width = (int(np.median([size[side] for size in sizes])) for side in range(2))
    return good, (height, width), len(set(sizes)) == 1, all_grey


def split_pictures(
    recipe: ImageClassificationRecipe,
    pictures: Sequence[LabelledPicture],
    validation: Sequence[LabelledPicture],
    processor: ImageProcessor,
    *,
    seed: int,
    say: Say,
) -> tuple[PictureSet, PictureSet]:
    """Decode the pictures, and return those for training and for validation; ``seed`` decides which are held out.

    Copies of a picture are held out together. Raises DataError for broken pictures, and for too few to hold any out.
    """
    options = {"skip_bad": recipe.skip_bad, "say": say}
    every = len(pictures) + len(validation)
    share = recipe.memory * len(pictures) / every
    decoded = decode_pictures(pictures, processor, memory=share, **options)  # type: ignore[arg-type]
    _report_conflicts(decoded.digests, decoded.pictures, say)
    whole = PictureSet(decoded.pixels, np.arange(len(decoded.pictures)), tuple(decoded.digests))
    if validation:
        other = decode_pictures(validation, processor, memory=recipe.memory - share, **options)  # type: ignore[arg-type]
        known = len(set(other.digests) & set(decoded.digests))
        if known:
            occur = "picture also occurs" if known == 1 else "pictures also occur"
            say(f"{known:,} validation {occur} in the training data, so scores are inflated")
        say(f"pictures: {len(whole):,} for training; {len(other.pictures):,} for validation")
        return whole, PictureSet(other.pixels, np.arange(len(other.pictures)), tuple(other.digests))
    held_out = np.array(hold_out(decoded.digests, [(one.label,) for one in decoded.pictures], seed=seed))
    training, held = (_select(whole, np.flatnonzero(chosen)) for chosen in (~held_out, held_out))
    if not len(training) or not len(held):
        raise DataError(
            "there are too few different pictures to hold some out for validation",
            expected="at least 2 different pictures of a label",
            got=f"{len(pictures)} pictures",
            do="give more pictures, or validation pictures: validation=... (--valid)",
        )
    say(f"pictures: {len(training):,} for training; {len(held):,} held out for validation, of each label alike")
    return training, held


def find_labels(pictures: Sequence[LabelledPicture]) -> tuple[str, ...]:
    """The labels of the pictures, in order. Raises DataError if there is nothing to tell apart."""
    found = {one.label for one in pictures}
    if len(found) < 2:
        raise DataError(
            "the training pictures all have the same label, so there is nothing to learn",
            expected="pictures with at least two different labels",
            got=f"{len(pictures):,} pictures with the label {', '.join(found)}",
            do="add pictures of another label, or check the column of the label (--columns)",
        )
    return sort_labels(found)


def check_labels(pictures: Sequence[LabelledPicture], labels: Sequence[str], what: str) -> None:
    """Raise DataError for pictures with labels that are not among ``labels``, those of ``what``."""
    unknown: dict[str, str] = {}
    for one in pictures:
        if one.label not in labels:
            unknown.setdefault(one.label, one.place)
    if unknown:
        raise DataError(
            f"pictures have labels that {what} lacks",
            expected=", ".join(labels[:8]) + (" .." if len(labels) > 8 else ""),
            got=", ".join(f"{label!r} of {place}" for label, place in list(unknown.items())[:5]),
            do="correct the labels, or add pictures of them to the training data",
        )


def _select(whole: PictureSet, chosen: Indices) -> PictureSet:
    return PictureSet(whole.pixels, chosen, tuple(whole.digests[index] for index in chosen.tolist()))


def _report_conflicts(digests: Sequence[str], pictures: Sequence[LabelledPicture], say: Say) -> None:
    """Report pictures that occur with different labels."""
    first: dict[str, LabelledPicture] = {}
    conflicting: dict[str, str] = {}
    for digest, one in zip(digests, pictures, strict=True):
        if first.setdefault(digest, one).label != one.label:
            conflicting.setdefault(digest, f"{first[digest].place} and {one.place}")
    if conflicting:
        occur = "picture occurs" if len(conflicting) == 1 else "pictures occur"
        say(f"{len(conflicting):,} {occur} with different labels, the first are {next(iter(conflicting.values()))}")
