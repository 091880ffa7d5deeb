"""From pictures with captions to pairs for training and for validation: read, decode, hold out, encode.

A picture with several captions is decoded once, and makes a pair with each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from regard.media import MediaKind
from regard.media.files_with_texts import FileWithText
from regard.tasks.clip.recipe import ClipRecipe
from regard.tasks.labelled_media import Say, hold_out_files, report_validation
from regard.tasks.picture_pixels import PicturePixels, decode_pictures
from regard.tasks.sentences import Indices, Sentences
from regard.text.tokenizer import Tokenizer
from regard.vision import ImageProcessor
from regard.vision.picture_file import PICTURES

_PAIRS = MediaKind("pair", "pairs", PICTURES.suffixes, PICTURES.columns, PICTURES.example)
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
