"""Batches of pictures: their pixels, decoded and augmented.

The numbers of a whole batch are drawn in each process, and a process changes the rows that it computes.
"""

from __future__ import annotations

import time
from abc import ABC
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.copy_to_device import copy_to
from regard.errors import DataError, RefusedError
from regard.tasks.decoded_files import DecodedFiles, Entry, FileBatches, FileSet, decode_both
from regard.tasks.labelled_data import report_bad_files
from regard.tasks.numbered_batches import NumberedBatch
from regard.tasks.sentences import Indices
from regard.vision import ImageProcessor
from regard.vision.augmentation import Augmentation, Draws
from regard.vision.picture_file import PICTURES, read_header


class PictureBatches(FileBatches[Entry, np.ndarray], ABC):
    """Batches of pictures that ``processor`` reads."""

    def __init__(
        self,
        examples: FileSet[Entry, np.ndarray],
        processor: ImageProcessor,
        *,
        size: int,
        seed: int,
        augmentation: Augmentation,
    ) -> None:
        super().__init__(examples, size=size, seed=seed)
        self.processor, self.augmentation = processor, augmentation

    def draw(self, batch: NumberedBatch) -> Draws:
        """Draw the random numbers of a batch."""
        generator = np.random.default_rng([self.seed, batch.epoch, batch.number])
        assert self.processor.picture_size is not None
        return self.augmentation.draw(generator, len(batch), *self.processor.picture_size)

    def change(
        self, batch: NumberedBatch, draws: Draws, rows: Indices, device: torch.device
    ) -> Float[Tensor, "rows channels height width"]:
        """Read the ``rows`` of a batch, and change them by its random numbers."""
        pixels = self.read(batch.examples[rows], device)
        begin = time.monotonic()
        changed = self.augmentation.apply(pixels, draws, rows, fill=self.processor.mean_colour)
        self.augmented += time.monotonic() - begin
        return changed

    def read(self, examples: Indices, device: torch.device) -> Float[Tensor, "rows channels height width"]:
        """The pixels of examples, 0 to 1, as they are."""
        pixels = torch.from_numpy(np.stack(self.examples.take(examples)))
        return self.processor.rescale_pixels(copy_to(pixels, device))

    def inputs(self, examples: Indices, device: torch.device) -> Mapping[str, Tensor]:
        """The pixels of examples, normalised."""
        return {"pixels": self.normalise(self.read(examples, device))}

    def normalise(self, pixels: Float[Tensor, "rows channels height width"]) -> Tensor:
        """Make the model input of pixels."""
        return self.processor.normalise(pixels)


def measure_pictures(pictures: Sequence[Entry], *, skip_bad: bool) -> tuple[list[Entry], tuple[int, int], bool, bool]:
    """Read the headers: the readable pictures, their usual (height, width), whether all have it, whether all are grey.

    Raises DataError with the names of pictures whose headers cannot be read, unless ``skip_bad``.
    """
    good, sizes, problems, all_grey = [], [], [], True
    for picture in pictures:
        try:
            height, width, is_grey = read_header(picture.content, name=picture.place)
        except DataError as error:
            problems.append(error)
            continue
        good.append(picture)
        sizes.append((height, width))
        all_grey &= is_grey
    report_bad_files(problems, len(pictures), PICTURES, skip_bad=skip_bad)
    height, width = (int(np.median([size[side] for size in sizes])) for side in range(2))
    return good, (height, width), len(set(sizes)) == 1, all_grey


def decode_pictures(
    pictures: Sequence[Entry], others: Sequence[Entry], processor: ImageProcessor, *, memory: float, skip_bad: bool
) -> tuple[DecodedFiles[Entry, np.ndarray], DecodedFiles[Entry, np.ndarray] | None]:
    """Decode the training pictures and the validation pictures ``others``: see ``decode_both``.

    Raises RefusedError for a processor whose pictures have no fixed size.
    """
    if processor.picture_size is None:
        raise RefusedError(
            "the pictures of this model have no fixed size",
            expected="a size of (height, width), or a crop, in preprocessor_config.json",
            got=f"size={processor.size}, crop=None",
            do="add a crop_size to the file",
        )

    def decode(picture: Entry) -> np.ndarray:
        return processor.to_pixels(picture.content, name=picture.place)

    return decode_both(pictures, others, decode, PICTURES, inputs="pixels", memory=memory, skip_bad=skip_bad)
