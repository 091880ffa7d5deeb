"""The pixels of pictures for training: decoded once and kept as bytes, or decoded again in background threads.

    kept        uint8 (pictures, channels, height, width), if that fits into the memory limit
    otherwise   the pictures of the next batches are decoded while the model computes; Pillow releases Python's lock

Every picture is decoded before training begins, so a broken one is found then, and not hours later.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from regard.errors import DataError, RefusedError
from regard.media import LabelledFile
from regard.tasks.labelled_media import Say, report_bad_files
from regard.tasks.sentences import Indices
from regard.vision import ImageProcessor
from regard.vision.picture_file import PICTURES

_CHUNK = 64
"""Pictures that a thread decodes at a time."""
_GIGABYTE = 10**9


@final
class PicturePixels:
    """The pixels of ``pictures``, made by ``processor``. ``kept`` are those of all pictures; None decodes when asked.

    ``waited`` counts the seconds in which ``take`` waited for pictures to be decoded.
    """

    def __init__(
        self, pictures: Sequence[LabelledFile], processor: ImageProcessor, kept: np.ndarray | None = None
    ) -> None:
        self.pictures, self.processor, self.kept = pictures, processor, kept
        self.waited = 0.0
        self._pool = None if kept is not None else _start_threads()
        self._asked: dict[int, Future[np.ndarray]] = {}

    def ask(self, pictures: Indices) -> None:
        """Begin to decode the pictures with these indices, which ``take`` will want."""
        if self._pool is not None:
            for index in pictures.tolist():
                if index not in self._asked:
                    self._asked[index] = self._pool.submit(self._decode, index)

    def take(self, pictures: Indices) -> UInt8[Tensor, "batch channels height width"]:
        """The pixels of the pictures with these indices. Raises DataError for a picture that became unreadable."""
        begin = time.monotonic()
        if self.kept is not None:
            found = self.kept[pictures]
        else:
            self.ask(pictures)
            found = np.stack([self._asked[index].result() for index in pictures.tolist()])
            for index in set(pictures.tolist()):
                del self._asked[index]
        self.waited += time.monotonic() - begin
        return torch.from_numpy(found)

    def _decode(self, index: int) -> np.ndarray:
        one = self.pictures[index]
        return self.processor.to_pixels(one.content, name=one.place)


@final
@dataclass(frozen=True, eq=False)
class DecodedPictures:
    """Pictures that can be decoded, their pixels, and a digest of the pixels of each."""

    pictures: list[LabelledFile]
    pixels: PicturePixels
    digests: list[str]


def decode_pictures(
    pictures: Sequence[LabelledFile],
    processor: ImageProcessor,
    *,
    memory: float,
    skip_bad: bool,
    say: Say,
) -> DecodedPictures:
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

    with _start_threads() as pool:
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
            f"{size / _GIGABYTE:.1f} GB of pixels are more than memory={memory:g} (--memory): "
            "pictures are decoded again in each epoch"
        )
    return DecodedPictures(listed, PicturePixels(listed, processor, kept), [digests[index] for index in good])


def _start_threads() -> ThreadPoolExecutor:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return ThreadPoolExecutor(max(2, cores), thread_name_prefix="decode")
