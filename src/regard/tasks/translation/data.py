"""From files of pairs to corpora of token ids: read, split into training and validation pairs, encode as subwords.

The split of pairs into training and validation data.

A source may occur in the data many times, with the same translation or others. If one pair were in the training data
and another in the validation data, the score would measure memorisation. So all pairs of a source are held out
together. Sources are equal if the model reads the same text: "Delete %s" and "Delete  %d" are, once codes are
placeholders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, final

import numpy as np

from regard.errors import DataError
from regard.tasks.sentences import Sentences
from regard.tasks.translation.batches import Corpus
from regard.tasks.translation.recipe import TranslationRecipe
from regard.text.pairs import Pair, PairFormat
from regard.text.pairs.read_and_report import read_and_report_pairs
from regard.text.placeholders import ProtectedPair, protect
from regard.text.sentence_tokenizer import SentenceTokenizer
from regard.text.subword_training import normalize_text
from regard.translation.translator import add_prefix

MAX_HELD_OUT = 1000
_HELD_OUT_SHARE = 0.05


def hold_out(sources: Sequence[str], *, seed: int, most: int = MAX_HELD_OUT) -> list[bool]:
    """For each source, whether it is held out: 5 % of the different sources, at least one and at most ``most``."""
    different = list(dict.fromkeys(sources))
    count = min(most, max(1, round(_HELD_OUT_SHARE * len(different))), len(different) - 1)
    chosen = np.random.default_rng(seed).permutation(len(different))[: max(0, count)]
    held_out = {different[index] for index in chosen.tolist()}
    return [source in held_out for source in sources]


_ENCODING_BATCH = 10_000
"""Sentences to encode at a time."""


@final
class Example(NamedTuple):
    """A pair, and its texts with placeholders for strings that are copied, not translated."""

    pair: Pair
    text: ProtectedPair


def split_pairs(
    recipe: TranslationRecipe, where: PairFormat, *, seed: int, say: Callable[[str], None]
) -> tuple[list[Example], list[Example]]:
    """Read the recipe's files, and return training and validation pairs.

    ``where`` is the recipe's, completed with the languages; ``seed`` decides which pairs are held out. Raises DataError
    for files without pairs, and for too few different sources to hold any out.
    """
    pairs = _make_examples(read_and_report_pairs(recipe.data, where, say))
    sources = [normalize_text(one.text.source) for one in pairs]
    if recipe.validation:
        validation = _make_examples(read_and_report_pairs(recipe.validation, where, say))
        known = len({normalize_text(one.text.source) for one in validation} & set(sources))
        if known:
            occur = "source also occurs" if known == 1 else "sources also occur"
            say(f"{known:,} validation {occur} in the training data, so scores are inflated")
        return pairs, validation
    held_out = hold_out(sources, seed=seed)
    training = [one for one, is_held_out in zip(pairs, held_out, strict=True) if not is_held_out]
    validation = [one for one, is_held_out in zip(pairs, held_out, strict=True) if is_held_out]
    if not training or not validation:
        raise DataError(
            "there are too few different sources to hold some out for validation",
            expected="at least 2 different sources",
            got=f"{len(pairs)} pairs",
            do="give more pairs, or validation pairs: validation=... (--valid)",
        )
    say(f"pairs: {len(training):,} for training; {len(validation):,} held out for validation")
    return training, validation


def _make_examples(pairs: Sequence[Pair]) -> list[Example]:
    return [Example(pair, protect(pair.source, pair.target)) for pair in pairs]


def encode_pairs(
    pairs: Sequence[Example],
    subwords: tuple[SentenceTokenizer, SentenceTokenizer],
    most: int,
    say: Callable[[str], None],
    *,
    prefix: str = "",
) -> tuple[Corpus, list[Pair]]:
    """Encode pairs as subwords, without those with a side of more than ``most`` tokens; return also their texts.

    Strings to be copied are placeholders, if the subwords have any. ``prefix`` is put before each source. Raises
    DataError if no pair is left.
    """
    texts = [one.text if subwords[0].has_placeholders else one.pair for one in pairs]
    both = [add_prefix(prefix, one.source) for one in texts], [one.target for one in texts]
    sides = [
        Sentences.from_ids(_encode_texts(side, own), own.vocabulary) for side, own in zip(both, subwords, strict=True)
    ]
    fits = np.maximum(sides[0].lengths, sides[1].lengths) <= most
    kept = [one.pair for one, fit in zip(pairs, fits, strict=True) if fit]
    if len(kept) < len(pairs):
        long = [one.pair.place for one, fit in zip(pairs, fits, strict=True) if not fit]
        more = f" and {len(long) - 5:,} more" if len(long) > 5 else ""
        say(f"skipped {len(long):,} because a side has more than {most} tokens: {', '.join(long[:5])}{more}")
    if not kept:
        raise DataError(
            "every pair is too long",
            expected=f"pairs with at most {most} tokens on each side",
            got=f"{len(pairs)} pairs, all longer",
            do="split them into sentences, or raise most_tokens (--most-tokens) or, with learned positions, "
            "max_length=... (--set max_length=...)",
        )
    return Corpus(*(side.select(fits) for side in sides)), kept


def _encode_texts(texts: Sequence[str], subwords: SentenceTokenizer) -> Iterator[list[int]]:
    """Yield the ids of each text. Encodes in batches: lists of ints take 20 times the memory of the result."""
    for first in range(0, len(texts), _ENCODING_BATCH):
        yield from subwords.encode(texts[first : first + _ENCODING_BATCH])
