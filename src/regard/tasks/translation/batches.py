"""Batches of about as many tokens each, of sentences of about one length, in an order that a seed decides.

    an epoch    shuffle the pairs, sort them by length (the shuffle decides among equals), cut where a batch is full,
                and shuffle the batches
    full        sentences x (the longest source or target, its end included) would be more than ``tokens``

Vaswani et al. 2017, section 5.1. The order is a function of (seed, epoch) alone, so a run that was cut off goes on with
the very batch that was next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int
from torch import Tensor

from regard.tasks.translation.corpus import Corpus, Sentences
from regard.train.loss import IGNORE_INDEX

Indices: TypeAlias = npt.NDArray[np.int64]


@final
@dataclass(frozen=True, eq=False)
class PairBatch:
    """Sources to read, targets to write, padded on the right.

    source (batch, source length) ends with the end of sentence; lengths (batch,) are those of the sources;
    decoder_input (batch, target length) begins with the start; labels (batch, target length) are what follows each of
    its tokens, and ``loss.IGNORE_INDEX`` where nothing does. ``tokens`` counts the labels that are not ignored.
    """

    source: Int[Tensor, "batch source_length"]
    lengths: Int[Tensor, " batch"]
    decoder_input: Int[Tensor, "batch length"]
    labels: Int[Tensor, "batch length"]
    tokens: int

    def to(self, device: torch.device) -> PairBatch:
        """On that device. Lengths stay: masks are made of them on the CPU."""
        source, decoder_input, labels = (ids.to(device) for ids in (self.source, self.decoder_input, self.labels))
        return PairBatch(source, self.lengths, decoder_input, labels, self.tokens)


@final
class Batches:
    """The batches of a corpus. ``tokens`` is the most that a batch may hold, padding included, on either side.

    ``pad_id``, ``start_id`` and ``end_id`` are those of the model that reads the batches.
    """

    def __init__(self, corpus: Corpus, *, tokens: int, seed: int, pad_id: int, start_id: int, end_id: int) -> None:
        self.corpus, self.tokens, self.seed = corpus, tokens, seed
        self.pad_id, self.start_id, self.end_id = pad_id, start_id, end_id
        self._lengths = np.maximum(corpus.source.lengths, corpus.target.lengths) + 1

    def epoch(self, number: int) -> list[Indices]:
        """The pairs of each batch of that epoch, in order."""
        chance = np.random.default_rng([self.seed, number])
        shuffled = chance.permutation(len(self.corpus))
        batches = self._cut_batches(shuffled[np.argsort(self._lengths[shuffled], kind="stable")])
        return [batches[index] for index in chance.permutation(len(batches))]

    def batches_by_length(self) -> list[Indices]:
        """Every pair once, the longest first: for validation."""
        return self._cut_batches(np.argsort(-self._lengths, kind="stable"))

    def batch(self, pairs: Indices) -> PairBatch:
        """The pairs as tensors."""
        source = _pad_rows(self.corpus.source, pairs, self.pad_id, after=(self.end_id,))
        decoder_input = _pad_rows(self.corpus.target, pairs, self.pad_id, before=(self.start_id,))
        labels = _pad_rows(self.corpus.target, pairs, IGNORE_INDEX, after=(self.end_id,))
        lengths = torch.from_numpy(self.corpus.source.lengths[pairs] + 1)
        return PairBatch(source, lengths, decoder_input, labels, int((self.corpus.target.lengths[pairs] + 1).sum()))

    def _cut_batches(self, ordered: Indices) -> list[Indices]:
        """Runs of pairs, each as long as fits; a pair that is too long by itself is a batch of its own."""
        return list(self._iterate_batches(ordered))

    def _iterate_batches(self, ordered: Indices) -> Iterator[Indices]:
        first, longest = 0, 0
        for place, length in enumerate(self._lengths[ordered].tolist()):
            longest = max(longest, length)
            if place > first and longest * (place - first + 1) > self.tokens:
                yield ordered[first:place]
                first, longest = place, length
        if len(ordered) > first:
            yield ordered[first:]


def _pad_rows(
    sentences: Sentences, pairs: Indices, padding: int, *, before: tuple[int, ...] = (), after: tuple[int, ...] = ()
) -> Int[Tensor, "batch length"]:
    """The sentences with tokens before and after, filled up with ``padding`` to the longest."""
    extra = len(before) + len(after)
    rows = np.full((len(pairs), int(sentences.lengths[pairs].max(initial=0)) + extra), padding, dtype=np.int64)
    for row, pair in zip(rows, pairs, strict=True):
        ids = sentences[int(pair)]
        row[: len(ids) + extra] = (*before, *ids, *after)
    return torch.from_numpy(rows)
