"""The pixels of pictures for training: decoded once and kept as bytes, or decoded again in background threads.

    kept        uint8 (pictures, channels, height, width), if that fits into the memory limit
    otherwise   the pictures of the next batches are decoded while the model computes; Pillow releases Python's lock

Every picture is decoded before training begins, so a broken one is found then, and not hours later.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, final

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from regard.errors import DataError, RefusedError
from regard.media import MediaFile
from regard.tasks.labelled_media import Say, report_bad_files
from regard.tasks.numbered_batches import ReadAhead, start_threads
from regard.tasks.sentences import Indices
from regard.vision import ImageProcessor
from regard.vision.picture_file import PICTURES, read_header

Entry = TypeVar("Entry", bound=MediaFile)

_CHUNK = 64
"""Pictures that a thread decodes at a time."""
_GIGABYTE = 10**9


@final
class PicturePixels(Generic[Entry]):
    """The pixels of ``pictures``, made by ``processor``. ``kept`` are those of all pictures; None decodes when asked.

    ``waited`` counts the seconds in which ``take`` waited for pictures to be decoded.
    """

    def __init__(self, pictures: Sequence[Entry], processor: ImageProcessor, kept: np.ndarray | None = None) -> None:
        self.pictures, self.processor, self.kept = pictures, processor, kept
        self.waited = 0.0
        self._ahead = ReadAhead(self._decode) if kept is None else None

    def ask(self, pictures: Indices) -> None:
        """Begin to decode the pictures with these indices, which ``take`` will want."""
        if self._ahead is not None:
            self._ahead.ask(pictures)

    def take(self, pictures: Indices) -> UInt8[Tensor, "batch channels height width"]:
        """The pixels of the pictures with these indices. Raises DataError for a picture that became unreadable."""
        begin = time.monotonic()
        if self._ahead is None:
            assert self.kept is not None
            found = self.kept[pictures]
        else:
            found = np.stack(self._ahead.take(pictures))
        self.waited += time.monotonic() - begin
        return torch.from_numpy(found)

    def _decode(self, index: int) -> np.ndarray:
        one = self.pictures[index]
        return self.processor.to_pixels(one.content, name=one.place)


@final
@dataclass(frozen=True, eq=False)
class DecodedPictures(Generic[Entry]):
    """Pictures that can be decoded, their pixels, and a digest of the pixels of each."""

    pictures: list[Entry]
    pixels: PicturePixels[Entry]
    digests: list[str]


def measure_pictures(
    pictures: Sequence[Entry], *, skip_bad: bool, say: Say
) -> tuple[list[Entry], tuple[int, int], bool, bool]:
    """Read the headers: the readable pictures, their usual (height, width), whether all have it, whether all are grey.

    Raises DataError with the names of pictures whose headers cannot be read, unless ``skip_bad``.
    """
    good, sizes, problems, all_grey = [], [], [], True
    for one in pictures:
        try:
            height, width, is_grey = read_header(one.content, name=one.place)
        except DataError as error:
            problems.append(error)
            continue
        good.append(one)
        sizes.append((height, width))
        all_grey &= is_grey
    report_bad_files(problems, len(pictures), PICTURES, skip_bad=skip_bad, say=say)
    height, width = (int(np.median([size[side] for size in sizes])) for side in range(2))
    return good, (height, width), len(set(sizes)) == 1, all_grey


def decode_pictures(
    pictures: Sequence[Entry],
    processor: ImageProcessor,
    *,
    memory: float,
    skip_bad: bool,
    say: Say,
) -> DecodedPictures[Entry]:
    """Decode all pictures, and keep their pixels if they take at most ``memory`` gigabytes.

    Raises DataError with the names of broken pictures, unless ``skip_bad``, which reports them and leaves them out;
    RefusedError for a processor whose pictures have no fixed size.
    """
    if processor.picture_size is None:
        raise RefusedError(
            "the pictures of this model have no fixed size",
            expected="a size of (height, width), or a crop, in preprocessor_config.json",
            got=f"size={processor.size}, crop=None",
            do="add a crop_size to the file",
        )
    shape = (len(pictures), processor.channels, *processor.picture_size)
    size = int(np.prod(shape, dtype=np.float64))
    kept = np.empty(shape, dtype=np.uint8) if size <= memory * _GIGABYTE else None
    digests: list[str] = [""] * len(pictures)
    problems: dict[int, DataError] = {}

    def decode(begin: int) -> None:
        for index in range(begin, min(begin + _CHUNK, len(pictures))):
            one = pictures[index]
            try:
                pixels = processor.to_pixels(one.content, name=one.place)
            except DataError as error:
                problems[index] = error
                continue
            digests[index] = hashlib.blake2b(pixels.tobytes(), digest_size=16).hexdigest()
            if kept is not None:
                kept[index] = pixels

    with start_threads() as pool:
        for _ in pool.map(decode, range(0, len(pictures), _CHUNK)):
            pass
    found = [problems[index] for index in sorted(problems)]
    report_bad_files(found, len(pictures), PICTURES, skip_bad=skip_bad, say=say)
    good = [index for index in range(len(pictures)) if index not in problems]
    listed = [pictures[index] for index in good]
    if kept is not None and problems:
        kept = kept[good]
    if kept is None:
        say(
            f"{size / _GIGABYTE:.1f} GB of pixels are more than `memory={memory:g}`: "
            "pictures are decoded again in each epoch"
        )
    return DecodedPictures(listed, PicturePixels(listed, processor, kept), [digests[index] for index in good])
