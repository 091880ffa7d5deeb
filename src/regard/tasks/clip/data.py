"""From pictures with captions to pairs for training and for validation: read, decode, hold out, encode.

A picture with several captions is decoded once, and makes a pair with each of them.

Batches of pairs, in an order that depends on (seed, epoch), with pictures augmented by (seed, epoch, batch).

So an interrupted run resumes with exactly the next batch, changed in exactly the same way. The numbers of a whole batch
are drawn in each process, and a process reads the rows that it computes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard import masks
from regard.media import Medium
from regard.media.files_with_texts import FileWithText
from regard.tasks.clip.recipe import ClipRecipe
from regard.tasks.labelled_media import Say, hold_out_files, report_validation
from regard.tasks.numbered_batches import LatestEpoch, NumberedBatch, batches_after, shuffled_batches
from regard.tasks.picture_pixels import PicturePixels, decode_pictures
from regard.tasks.sentences import Indices, Sentences, pad_rows
from regard.text.tokenizer import Tokenizer
from regard.vision import ImageProcessor
from regard.vision.augmentation import Augmentation
from regard.vision.picture_file import PICTURES


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


_PAIRS = Medium("pair", "pairs", PICTURES.suffixes, PICTURES.columns, PICTURES.example)
"""The noun for pairs in messages."""


@final
@dataclass(frozen=True, eq=False)
class PicturesWithTexts:
    """Pairs of a picture and a text.

    pixels                  those of all pictures
    picture_of (pairs,)     the index of the picture of each pair
    texts                   the text of each pair
    digests                 a digest of the pixels of each pair's picture
    """

    pixels: PicturePixels[FileWithText]
    picture_of: Indices
    texts: tuple[str, ...]
    digests: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.texts)

    def select(self, which: Indices) -> PicturesWithTexts:
        """The pairs ``which``."""
        listed = which.tolist()
        return PicturesWithTexts(
            self.pixels,
            self.picture_of[which],
            tuple(self.texts[index] for index in listed),
            tuple(self.digests[index] for index in listed),
        )


def find_pictures(pairs: Sequence[FileWithText]) -> list[FileWithText]:
    """One pair of each picture, in order: the first."""
    first: dict[str, FileWithText] = {}
    for one in pairs:
        first.setdefault(str(one.content), one)
    return list(first.values())


def split_pairs(
    recipe: ClipRecipe,
    pairs: Sequence[FileWithText],
    validation: Sequence[FileWithText],
    processor: ImageProcessor,
    *,
    seed: int,
    say: Say,
) -> tuple[PicturesWithTexts, PicturesWithTexts]:
    """Decode the pictures, and return the pairs for training and for validation; ``seed`` decides which are held out.

    All pairs of a picture are held out together, copies of it too. Raises DataError for broken pictures, and for too
    few to hold any out.
    """
    share = recipe.memory * len(pairs) / (len(pairs) + len(validation))
    whole = decode_pairs(pairs, processor, memory=share, skip_bad=recipe.skip_bad, say=say)
    if validation:
        other = decode_pairs(validation, processor, memory=recipe.memory - share, skip_bad=recipe.skip_bad, say=say)
        report_validation(whole.digests, other.digests, _PAIRS, say)
        return whole, other
    training, held = hold_out_files(whole.digests, [()] * len(whole), _PAIRS, seed=seed, say=say)
    return whole.select(training), whole.select(held)


def decode_pairs(
    pairs: Sequence[FileWithText], processor: ImageProcessor, *, memory: float, skip_bad: bool, say: Say
) -> PicturesWithTexts:
    """Decode the pictures of pairs. Raises DataError for broken ones, unless ``skip_bad``, which reports them."""
    decoded = decode_pictures(find_pictures(pairs), processor, memory=memory, skip_bad=skip_bad, say=say)
    place = {str(one.content): index for index, one in enumerate(decoded.pictures)}
    good = [one for one in pairs if str(one.content) in place]
    picture_of = np.array([place[str(one.content)] for one in good], dtype=np.int64)
    return PicturesWithTexts(
        decoded.pixels,
        picture_of,
        tuple(one.text for one in good),
        tuple(decoded.digests[index] for index in picture_of.tolist()),
    )


def encode_texts(pairs: PicturesWithTexts, tokenizer: Tokenizer, *, say: Say) -> Sentences:
    """The token ids of all texts, with start and end token; those longer than the tokenizer's limit are cut."""
    found = tokenizer.ids(pairs.texts, truncate=True)
    if tokenizer.limit is not None:
        full = [index for index, ids in enumerate(found) if len(ids) == tokenizer.limit]
        cut = sum(len(ids) > tokenizer.limit for ids in tokenizer.ids([pairs.texts[index] for index in full]))
        if cut:
            say(f"cut {cut:,} of {len(found):,} texts at {tokenizer.limit:,} tokens")
    return Sentences.from_ids(found, tokenizer.vocabulary)
