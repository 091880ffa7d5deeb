"""From files of pairs to corpora of tokens: read, split into training and validation pairs, cut into subwords."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, final

import numpy as np

from regard.errors import DataError
from regard.tasks.translation.corpus import Corpus, Sentences
from regard.tasks.translation.new_subwords import SubwordPair
from regard.tasks.translation.recipe import TranslationRecipe
from regard.tasks.translation.validation_split import hold_out
from regard.text.pairs import Pair, PairFormat
from regard.text.pairs.read_and_report import read_and_report_pairs
from regard.text.placeholders import ProtectedPair, protect
from regard.text.subword_training import normalize_text
from regard.text.subwords import Subwords

_ENCODING_BATCH = 10_000
"""Sentences that are encoded at a time."""


@final
class Example(NamedTuple):
    """A pair, and its texts with placeholders for what is to be copied."""

    pair: Pair
    text: ProtectedPair


def split_pairs(
    recipe: TranslationRecipe, where: PairFormat, *, seed: int, say: Callable[[str], None]
) -> tuple[list[Example], list[Example]]:
    """Training and validation pairs. ``where`` is the recipe's, its languages known; ``seed`` draws what is held out.

    Raises DataError for files without pairs, and for too few different sources to hold any out.
    """
    pairs = _make_examples(read_and_report_pairs(recipe.data, where, say))
    sources = [normalize_text(one.text.source) for one in pairs]
    if recipe.validation:
        measured = _make_examples(read_and_report_pairs(recipe.validation, where, say))
        known = len({normalize_text(one.text.source) for one in measured} & set(sources))
        if known:
            occur = "source also occurs" if known == 1 else "sources also occur"
            say(f"{known:,} validation {occur} in the training data, so scores are inflated")
        return pairs, measured
    held = hold_out(sources, seed=seed)
    learnt = [one for one, out in zip(pairs, held, strict=True) if not out]
    measured = [one for one, out in zip(pairs, held, strict=True) if out]
    if not learnt or not measured:
        raise DataError(
            "there are too few different sentences to learn from some and measure with others",
            expected="at least 2 different sources",
            got=f"{len(pairs)} pairs",
            do="give more pairs, or others to measure with (--valid)",
        )
    say(f"pairs: {len(learnt):,} to learn from; {len(measured):,} held out, to measure with")
    return learnt, measured


def _make_examples(pairs: Sequence[Pair]) -> list[Example]:
    return [Example(pair, protect(pair.source, pair.target)) for pair in pairs]


def encode_pairs(
    pairs: Sequence[Example], subwords: SubwordPair, most: int, say: Callable[[str], None]
) -> tuple[Corpus, list[Pair]]:
    """The pairs as tokens and as texts, without those with a side of more than ``most`` tokens.

    Raises DataError where none is left.
    """
    sides = [
        Sentences.from_ids(_encode_texts([getattr(one.text, side) for one in pairs], own), own.vocabulary)
        for side, own in zip(("source", "target"), subwords, strict=True)
    ]
    fits = np.maximum(sides[0].lengths, sides[1].lengths) <= most
    kept = [one.pair for one, fit in zip(pairs, fits, strict=True) if fit]
    if len(kept) < len(pairs):
        long = [one.pair.place for one, fit in zip(pairs, fits, strict=True) if not fit]
        more = f" and {len(long) - 5:,} more" if len(long) > 5 else ""
        say(f"left out {len(long):,}, where a side has more than {most} tokens: {', '.join(long[:5])}{more}")
    if not kept:
        raise DataError(
            "every pair is too long",
            expected=f"pairs with at most {most} tokens on each side",
            got=f"{len(pairs)} pairs, all longer",
            do="split them into sentences, or allow more (--most-tokens; of learned positions --set max_length)",
        )
    return Corpus(*(side.select(fits) for side in sides)), kept


def _encode_texts(texts: Sequence[str], subwords: Subwords) -> Iterator[list[int]]:
    """The ids of each text. Some thousands are encoded at a time: what lists of numbers take is 20 times the result."""
    for first in range(0, len(texts), _ENCODING_BATCH):
        yield from subwords.encode(texts[first : first + _ENCODING_BATCH])
