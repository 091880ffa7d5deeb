"""From pictures with captions to pairs for training and for validation: read, decode, hold out, encode.

A picture with several captions is decoded once, and makes a pair with each of them.

Batches of pairs, with pictures augmented.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard import masks
from regard.copy_to_device import copy_to
from regard.log import log
from regard.media.files_with_texts import FileWithText
from regard.tasks.clip.recipe import ClipRecipe
from regard.tasks.decoded_files import DecodedFiles, FileSet
from regard.tasks.labelled_data import hold_out_files, report_validation
from regard.tasks.numbered_batches import NumberedBatch
from regard.tasks.picture_batches import PictureBatches, decode_pictures
from regard.tasks.sentences import Indices, Sentences, pad_rows
from regard.text.tokenizer import Tokenizer
from regard.vision import ImageProcessor
from regard.vision.augmentation import Augmentation
from regard.vision.picture_file import PICTURES


@final
class CaptionedPictureBatches(PictureBatches[FileWithText]):
    """Batches of ``pairs``, whose texts have the token ids ``ids``, padded with ``pad_id``."""

    def __init__(
        self,
        pairs: Pairs,
        ids: Sentences,
        processor: ImageProcessor,
        *,
        pad_id: int,
        size: int,
        seed: int,
        augmentation: Augmentation,
    ) -> None:
        super().__init__(pairs.pictures, processor, size=size, seed=seed, augmentation=augmentation)
        self.pairs, self.ids, self.pad_id = pairs, ids, pad_id
        self._text_number = _number(pairs.texts)
        self._picture_number = _number(pairs.pictures.digests)

    def target_bytes(self) -> bytes:
        """The texts of the pairs."""
        return "\0".join(self.pairs.texts).encode()

    def augment(
        self, batch: NumberedBatch, rows: Indices, device: torch.device
    ) -> Float[Tensor, "rows channels height width"]:
        """The model input of the pictures of the ``rows`` of a batch, augmented."""
        return self.normalise(self.change(batch, self.draw(batch), rows, device))

    def inputs(self, examples: Indices, device: torch.device) -> Mapping[str, Any]:
        """The token ids and the pixels of pairs, and the mask of the texts."""
        ids, mask = self.read_texts(examples)
        return {"ids": copy_to(ids, device), "pixels": self.normalise(self.read(examples, device)), "mask": mask}

    def read_texts(self, pairs: Indices) -> tuple[Int[Tensor, "rows length"], masks.Mask]:
        """The token ids of the texts of pairs, and the mask that hides padding."""
        return pad_rows(self.ids, pairs, self.pad_id), masks.padding(self.ids.lengths[pairs].tolist())

    def find_same(self, batch: NumberedBatch, rows: Indices) -> Bool[Tensor, "rows batch"]:
        """True where a row and a pair of the batch have the same picture or the same text."""
        pairs = batch.examples
        same = [number[pairs[rows], None] == number[pairs] for number in (self._text_number, self._picture_number)]
        return torch.from_numpy(same[0] | same[1])


def _number(values: Sequence[str]) -> Indices:
    """The number of each value, equal for equal values."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(value, len(known)) for value in values], dtype=np.int64)


CAPTIONED_PICTURES = replace(PICTURES, singular="pair", plural="pairs")
"""The noun for pairs in messages."""


@final
@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of a picture and a text: the picture of each pair, and its text."""

    pictures: FileSet[FileWithText, np.ndarray]
    texts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.texts)


def find_pictures(pairs: Sequence[FileWithText]) -> list[FileWithText]:
    """One pair of each picture, in order: the first."""
    first: dict[str, FileWithText] = {}
    for pair in pairs:
        first.setdefault(str(pair.content), pair)
    return list(first.values())


def split_pairs(
    recipe: ClipRecipe,
    pairs: Sequence[FileWithText],
    validation: Sequence[FileWithText],
    processor: ImageProcessor,
    *,
    seed: int,
) -> tuple[Pairs, Pairs]:
    """Decode the pictures, and return the pairs for training and for validation; ``seed`` decides which are held out.

    All pairs of a picture are held out together, copies of it too. Raises DataError for broken pictures, and for too
    few to hold any out.
    """
    whole, others = decode_pairs(pairs, validation, processor, memory=recipe.memory, skip_bad=recipe.skip_bad)
    if others is not None:
        report_validation(whole.pictures.digests, others.pictures.digests, CAPTIONED_PICTURES)
        return whole, others
    training, held = (
        Pairs(whole.pictures.select(some), tuple(whole.texts[index] for index in some.tolist()))
        for some in hold_out_files(whole.pictures.digests, [()] * len(whole), CAPTIONED_PICTURES, seed=seed)
    )
    return training, held


def decode_pairs(
    pairs: Sequence[FileWithText],
    others: Sequence[FileWithText],
    processor: ImageProcessor,
    *,
    memory: float,
    skip_bad: bool,
) -> tuple[Pairs, Pairs | None]:
    """Decode the pictures of pairs, and of ``others``, None if there are none.

    Raises DataError for broken ones, unless ``skip_bad``, which reports them.
    """
    decoded, other = decode_pictures(
        find_pictures(pairs), find_pictures(others), processor, memory=memory, skip_bad=skip_bad
    )
    return _join_pairs(pairs, decoded), None if other is None else _join_pairs(others, other)


def _join_pairs(pairs: Sequence[FileWithText], decoded: DecodedFiles[FileWithText, np.ndarray]) -> Pairs:
    """The pairs whose pictures were decoded."""
    place = {str(file.content): index for index, file in enumerate(decoded.files)}
    good = [pair for pair in pairs if str(pair.content) in place]
    picture_of = np.array([place[str(pair.content)] for pair in good], dtype=np.int64)
    return Pairs(FileSet(decoded, picture_of), tuple(pair.text for pair in good))


def encode_texts(pairs: Pairs, tokenizer: Tokenizer) -> Sentences:
    """The token ids of all texts, with start and end token; those longer than the tokenizer's limit are cut."""
    found = tokenizer.ids(pairs.texts, truncate=True)
    if tokenizer.limit is not None:
        full = [index for index, ids in enumerate(found) if len(ids) == tokenizer.limit]
        cut = sum(len(ids) > tokenizer.limit for ids in tokenizer.ids([pairs.texts[index] for index in full]))
        if cut:
            log.info(f"cut {cut:,} of {len(found):,} texts at {tokenizer.limit:,} tokens")
    return Sentences.from_ids(found, tokenizer.vocabulary)
