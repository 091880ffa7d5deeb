"""Batches with about the same number of tokens, of sentences of similar length, in an order that depends on a seed.

    an epoch    shuffle the pairs, sort them by length (ties stay shuffled), start a new batch when one is full,
                and shuffle the batches
    full        sentences x (the longest source or target, with its end token) would be more than ``tokens``

Vaswani et al. 2017, section 5.1. The order depends on (seed, epoch) alone, so an interrupted run resumes with exactly
the next batch.

Sentence pairs as token ids in memory. 10 million pairs of 20 tokens take 0.8 GB, two bytes per token.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from regard.errors import DataError
from regard.tasks.sentences import Indices, Sentences, pad_rows
from regard.text.length_batches import cut_batches
from regard.train.loss import IGNORE_INDEX


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

    source (batch, source length) ends with the end token; lengths (batch,) are those of the sources, with it;
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
        source, decoder_input, labels = (ids.to(device) for ids in (self.source, self.decoder_input, self.labels))
        return PairBatch(source, self.lengths, decoder_input, labels, self.tokens)


@final
class Batches:
    """The batches of a corpus. ``tokens`` is the maximum of a batch on either side, padding included.

    ``pad_id``, ``start_id`` and ``end_id`` are those of the model.
    """

    def __init__(self, corpus: Corpus, *, tokens: int, seed: int, pad_id: int, start_id: int, end_id: int) -> None:
        self.corpus, self.tokens, self.seed = corpus, tokens, seed
        self.pad_id, self.start_id, self.end_id = pad_id, start_id, end_id
        self._lengths = np.maximum(corpus.source.lengths, corpus.target.lengths) + 1

    def epoch(self, number: int) -> list[Indices]:
        """The indices of the pairs in each batch of epoch ``number`` (from 0), in order."""
        generator = np.random.default_rng([self.seed, number])
        shuffled = generator.permutation(len(self.corpus))
        batches = self._cut_batches(shuffled[np.argsort(self._lengths[shuffled], kind="stable")])
        return [batches[index] for index in generator.permutation(len(batches))]

    def batches_by_length(self) -> list[Indices]:
        """Batches of every pair once, the longest first, for validation."""
        return self._cut_batches(np.argsort(-self._lengths, kind="stable"))

    def batch(self, pairs: Indices) -> PairBatch:
        """Build the padded tensors of the pairs with these indices."""
        source = pad_rows(self.corpus.source, pairs, self.pad_id, after=(self.end_id,))
        decoder_input = pad_rows(self.corpus.target, pairs, self.pad_id, before=(self.start_id,))
        labels = pad_rows(self.corpus.target, pairs, IGNORE_INDEX, after=(self.end_id,))
        lengths = torch.from_numpy(self.corpus.source.lengths[pairs] + 1)
        return PairBatch(source, lengths, decoder_input, labels, int((self.corpus.target.lengths[pairs] + 1).sum()))

    def _cut_batches(self, ordered: Indices) -> list[Indices]:
        """Cut pairs, in that order, into batches; a pair that is too long by itself is a batch of its own."""
        return [ordered[batch] for batch in cut_batches(self._lengths[ordered].tolist(), tokens=self.tokens)]
