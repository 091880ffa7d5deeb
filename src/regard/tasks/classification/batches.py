"""Batches of texts of similar length, in an order that depends on a seed.

    an epoch    shuffle the texts, cut them into pools of 50 batches, sort each pool by length (ties stay shuffled),
                cut it into batches, and shuffle all batches

Little of a batch is padding, and still the texts of a batch are different ones in each epoch. The order depends on
(seed, epoch) alone, so an interrupted run resumes with exactly the next batch.

Labelled texts as token ids in memory, with the labels of each as a row of a matrix.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.tasks.sentences import Indices, Sentences, pad_rows
from regard.text.length_batches import cut_batches


@final
@dataclass(frozen=True, eq=False)
class LabelledCorpus:
    """Texts as token ids, special tokens included; ``truth`` (texts, labels) is True where a text has a label."""

    texts: Sentences
    truth: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def digest(self) -> str:
        """SHA-256 of all tokens and labels, in order, by which a resumed run recognises its data."""
        digest = hashlib.sha256()
        digest.update(self.texts.offsets.tobytes())
        digest.update(self.texts.ids.astype(np.uint32).tobytes())
        digest.update(np.packbits(self.truth).tobytes())
        return digest.hexdigest()


_POOL_BATCHES = 50
_NO_LIMIT = 2**62


@final
@dataclass(frozen=True, eq=False)
class TextBatch:
    """A batch of texts: ids (batch, length) padded on the right, lengths (batch,), truth (batch, labels)."""

    ids: Int[Tensor, "batch length"]
    lengths: Int[Tensor, " batch"]
    truth: Bool[Tensor, "batch labels"]

    def to(self, device: torch.device) -> TextBatch:
        """Move ids and truth to ``device``. Lengths stay on the CPU, where masks are made from them."""
        return TextBatch(self.ids.to(device), self.lengths, self.truth.to(device))


@final
class Batches:
    """The batches of a corpus: at most ``size`` texts, and ``tokens`` tokens, padding included (None: no limit)."""

    def __init__(self, corpus: LabelledCorpus, *, size: int, tokens: int | None, seed: int, pad_id: int) -> None:
        self.corpus, self.size, self.tokens, self.seed, self.pad_id = corpus, size, tokens, seed, pad_id

    def epoch(self, number: int) -> list[Indices]:
        """The indices of the texts in each batch of epoch ``number`` (from 0), in order."""
        generator = np.random.default_rng([self.seed, number])
        shuffled, lengths = generator.permutation(len(self.corpus)), self.corpus.texts.lengths
        batches: list[Indices] = []
        for begin in range(0, len(shuffled), self.size * _POOL_BATCHES):
            pool = shuffled[begin : begin + self.size * _POOL_BATCHES]
            batches += self._cut_batches(pool[np.argsort(lengths[pool], kind="stable")])
        return [batches[index] for index in generator.permutation(len(batches))]

    def batches_by_length(self) -> list[Indices]:
        """Batches of every text once, the longest first, for validation."""
        return self._cut_batches(np.argsort(-self.corpus.texts.lengths, kind="stable"))

    def batch(self, texts: Indices) -> TextBatch:
        """Build the tensors of the texts with these indices."""
        ids = pad_rows(self.corpus.texts, texts, self.pad_id)
        lengths = torch.from_numpy(self.corpus.texts.lengths[texts])
        return TextBatch(ids, lengths, torch.from_numpy(self.corpus.truth[texts]))

    def _cut_batches(self, ordered: Indices) -> list[Indices]:
        """Cut texts, in that order, into batches; a text that is too long by itself is a batch of its own."""
        lengths = self.corpus.texts.lengths[ordered].tolist()
        tokens = _NO_LIMIT if self.tokens is None else self.tokens
        return [ordered[batch] for batch in cut_batches(lengths, tokens=tokens, size=self.size)]
