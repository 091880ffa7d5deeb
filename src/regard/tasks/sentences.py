"""Sentences as token ids in memory: one flat array of ids, with the offsets of the sentences; and padded batches.

    ids (all tokens of all sentences), offsets (sentences + 1,); sentence i is ids[offsets[i] : offsets[i + 1]]

Two bytes per token if the vocabulary allows it.

The loss of predicting tokens by their frequencies alone, which a language model beats once it reads the text.

    loss = -mean over held-out tokens t of ln((n_t + 1) / (N + V))    n_t of N training tokens are t; V tokens in all

Laplace's rule of succession: a token that the training texts lack has a probability, too.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int
from torch import Tensor


def frequency_loss(training: npt.NDArray[np.integer], held_out: npt.NDArray[np.integer], vocab_size: int) -> float:
    """The mean loss of the token ids ``held_out``, in nats, by their frequencies in ``training``."""
    counts = np.bincount(training.astype(np.int64), minlength=vocab_size) + 1
    return float(-np.log(counts[held_out.astype(np.int64)] / counts.sum()).mean())


def without_first(sentences: Sentences) -> npt.NDArray[np.integer]:
    """The ids of all tokens that have a token before them in their sentence: those that a model predicts."""
    is_first = np.zeros(len(sentences.ids) + 1, dtype=bool)
    is_first[sentences.offsets[:-1]] = True
    return sentences.ids[~is_first[:-1]]


Indices: TypeAlias = npt.NDArray[np.int64]


@final
@dataclass(frozen=True, eq=False)
class Sentences:
    """Sentences of token ids without padding: ``ids`` (tokens of all sentences,), ``offsets`` (sentences + 1,)."""

    ids: npt.NDArray[np.unsignedinteger]
    offsets: npt.NDArray[np.int64]

    @classmethod
    def from_ids(cls, sentences: Iterable[Sequence[int]], vocabulary: int) -> Sentences:
        """Store sentences with 2-byte ids if the vocabulary has at most 65,536 tokens, else 4-byte. Reads them once."""
        ids, lengths = array("H" if vocabulary <= 2**16 else "I"), array("q", [0])
        for sentence in sentences:
            ids.extend(sentence)
            lengths.append(len(sentence))
        return cls(np.asarray(ids), np.cumsum(lengths, dtype=np.int64))

    def select(self, mask: npt.NDArray[np.bool_]) -> Sentences:
        """The sentences for which ``mask`` (sentences,) is True."""
        if mask.all():  # the usual case, without a copy
            return self
        lengths = self.lengths
        ends = np.concatenate([[0], np.cumsum(lengths[mask], dtype=np.int64)])
        return Sentences(self.ids[np.repeat(mask, lengths)], ends)

    @property
    def digest(self) -> str:
        """SHA-256 of all tokens, in order, by which a resumed run recognises its data."""
        digest = hashlib.sha256(self.offsets.tobytes())
        digest.update(self.ids.astype(np.uint32).tobytes())
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> npt.NDArray[np.unsignedinteger]:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of tokens of each sentence, (sentences,)."""
        return np.diff(self.offsets)


def pad_rows(
    sentences: Sentences, indices: Indices, padding: int, *, before: tuple[int, ...] = (), after: tuple[int, ...] = ()
) -> Int[Tensor, "batch length"]:
    """The sentences of ``indices``, with tokens ``before`` and ``after`` them, padded on the right with ``padding``."""
    extra = len(before) + len(after)
    rows = np.full((len(indices), int(sentences.lengths[indices].max(initial=0)) + extra), padding, dtype=np.int64)
    for row, index in zip(rows, indices, strict=True):
        ids = sentences[int(index)]
        row[: len(ids) + extra] = (*before, *ids, *after)
    return torch.from_numpy(rows)
