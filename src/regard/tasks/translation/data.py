"""From files of pairs to corpora of token ids: read, split into training and validation pairs, encode as subwords.

The split of pairs into training and validation data.

A source may occur in the data many times, with the same translation or others. If one pair were in the training data
and another in the validation data, the score would measure memorisation. So all pairs of a source are held out
together. Sources are equal if the model reads the same text: "Delete %s" and "Delete  %d" are, once codes are
placeholders.

Batches with about the same number of tokens, of sentences of similar length: all pairs are one pool, and a batch is
full if sentences x (the longest source or target, with its end token) would be more than ``tokens``. Vaswani et al.
2017, section 5.1.

Sentence pairs as token ids in memory. 10 million pairs of 20 tokens take 0.8 GB, two bytes per token.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from regard.copy_to_device import copy_to
from regard.errors import DataError
from regard.language import abbreviate_names
from regard.log import log
from regard.media import PAIRS
from regard.tasks.labelled_data import split_entries
from regard.tasks.numbered_batches import BatchesByLength
from regard.tasks.sentences import Indices, Sentences, pad_rows
from regard.tasks.translation.recipe import TranslationRecipe
from regard.text.pairs import Pair, PairFormat
from regard.text.pairs.read import read_and_report_pairs
from regard.text.placeholders import ProtectedPair, protect
from regard.text.sentence_tokenizer import SentenceTokenizer
from regard.text.subword_training import normalize_text
from regard.train.loss import IGNORE_INDEX
from regard.translation.translator import add_prefix


@final
@dataclass(frozen=True, eq=False)
class Corpus:
    """Aligned sources and targets, without start and end tokens."""

    source: Sentences
    target: Sentences

    def __post_init__(self) -> None:
        if len(self.source) != len(self.target):
            raise DataError(
                "there are not as many sources as targets",
                expected="one target for each source",
                got=f"{len(self.source)} sources, {len(self.target)} targets",
                do="pass pairs",
            )

    def __len__(self) -> int:
        return len(self.source)

    @property
    def digest(self) -> str:
        """SHA-256 of all tokens, in order, by which a resumed run recognises its data."""
        digest = hashlib.sha256()
        for side in (self.source, self.target):
            digest.update(side.offsets.tobytes())
            digest.update(side.ids.astype(np.uint32).tobytes())
        return digest.hexdigest()


@final
@dataclass(frozen=True, eq=False)
class PairBatch:
    """A batch of sentence pairs as token ids, padded on the right.

    source (batch, source length) ends with the end token; lengths (batch,) are the lengths of the sources, with it;
    decoder_input (batch, target length) starts with the start token; labels (batch, target length) are the tokens that
    follow its tokens, and ``loss.IGNORE_INDEX`` for padding. ``tokens`` counts the labels that are not ignored.
    """

    source: Int[Tensor, "batch source_length"]
    lengths: Int[Tensor, " batch"]
    decoder_input: Int[Tensor, "batch length"]
    labels: Int[Tensor, "batch length"]
    tokens: int

    def to(self, device: torch.device) -> PairBatch:
        """Move the ids to ``device``. Lengths stay on the CPU, where masks are made from them."""
        source, decoder_input, labels = (copy_to(ids, device) for ids in (self.source, self.decoder_input, self.labels))
        return PairBatch(source, self.lengths, decoder_input, labels, self.tokens)


@final
class CorpusBatches(BatchesByLength):
    """The batches of a corpus. ``tokens`` is the maximum of a batch on either side, padding included.

    ``pad_id``, ``start_id`` and ``end_id`` are the model's ids.
    """

    def __init__(self, corpus: Corpus, *, tokens: int, seed: int, pad_id: int, start_id: int, end_id: int) -> None:
        super().__init__(size=max(1, len(corpus)), seed=seed)
        self.corpus, self.tokens = corpus, tokens
        self.pad_id, self.start_id, self.end_id = pad_id, start_id, end_id
        self._lengths = np.maximum(corpus.source.lengths, corpus.target.lengths) + 1

    def __len__(self) -> int:
        return len(self.corpus)

    @property
    def lengths(self) -> Indices:
        """The tokens of the longer side of each pair, with its end token."""
        return self._lengths

    @property
    def digest(self) -> str:
        """SHA-256 of all tokens, in order, by which a resumed run recognises its data."""
        return self.corpus.digest

    def batch(self, pairs: Indices) -> PairBatch:
        """Build the padded tensors of the pairs with these indices."""
        source = pad_rows(self.corpus.source, pairs, self.pad_id, after=(self.end_id,))
        decoder_input = pad_rows(self.corpus.target, pairs, self.pad_id, before=(self.start_id,))
        labels = pad_rows(self.corpus.target, pairs, IGNORE_INDEX, after=(self.end_id,))
        lengths = torch.from_numpy(self.corpus.source.lengths[pairs] + 1)
        return PairBatch(source, lengths, decoder_input, labels, int((self.corpus.target.lengths[pairs] + 1).sum()))


_ENCODING_BATCH = 10_000
"""Sentences to encode at a time."""


@final
class Example(NamedTuple):
    """A pair, and its texts with placeholders for strings that are copied, not translated."""

    pair: Pair
    text: ProtectedPair


def split_pairs(recipe: TranslationRecipe, where: PairFormat, *, seed: int) -> tuple[list[Example], list[Example]]:
    """Read the recipe's files, and return training and validation pairs.

    ``where`` is the recipe's, completed with the languages; ``seed`` decides which pairs are held out. Raises DataError
    for files without pairs, and for too few different sources to hold any out.
    """
    pairs = _make_examples(read_and_report_pairs(recipe.data, where))
    others = _make_examples(read_and_report_pairs(recipe.validation, where)) if recipe.validation else None
    labels: list[tuple[str, ...]] = [()] * len(pairs)
    return split_entries(
        pairs, others, PAIRS, digest=lambda pair: normalize_text(pair.text.source), labels=labels, seed=seed
    )


def _make_examples(pairs: Sequence[Pair]) -> list[Example]:
    return [Example(pair, protect(pair.source, pair.target)) for pair in pairs]


def encode_pairs(
    pairs: Sequence[Example],
    subwords: tuple[SentenceTokenizer, SentenceTokenizer],
    max_tokens: int,
    *,
    prefix: str = "",
) -> tuple[Corpus, list[Pair]]:
    """Encode pairs as subwords, without those with a side of more than ``max_tokens`` tokens; return also their texts.

    Strings to be copied are placeholders, if the subwords have any. ``prefix`` is put before each source. Raises
    DataError if no pair is left.
    """
    texts = [pair.text if subwords[0].has_placeholders else pair.pair for pair in pairs]
    both = [add_prefix(prefix, text.source) for text in texts], [text.target for text in texts]
    sides = [
        Sentences.from_ids(_encode_texts(side, own), own.vocabulary) for side, own in zip(both, subwords, strict=True)
    ]
    fits = np.maximum(sides[0].lengths, sides[1].lengths) <= max_tokens
    kept = [example.pair for example, fit in zip(pairs, fits, strict=True) if fit]
    if len(kept) < len(pairs):
        long = [example.pair.place for example, fit in zip(pairs, fits, strict=True) if not fit]
        log.info(f"skipped {len(long):,} because a side has more than {max_tokens} tokens: {abbreviate_names(long, 5)}")
    if not kept:
        raise DataError(
            "every pair is too long",
            expected=f"pairs with at most {max_tokens} tokens on each side",
            got=f"{len(pairs)} pairs, all longer",
            do="split them into sentences, or raise `most_tokens` or, with learned positions, "
            '`hyperparameters={"max_length": ...}`',
        )
    return Corpus(*(side.select(fits) for side in sides)), kept


def _encode_texts(texts: Sequence[str], subwords: SentenceTokenizer) -> Iterator[list[int]]:
    """Yield the ids of each text. Encodes in batches: lists of ints take 20 times the memory of the result."""
    for first in range(0, len(texts), _ENCODING_BATCH):
        yield from subwords.encode(texts[first : first + _ENCODING_BATCH])
