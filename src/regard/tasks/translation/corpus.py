"""Sentence pairs as token ids in memory: one flat array of ids for each side, with the offsets of its sentences.

    source  ids (all tokens of all sentences), offsets (sentences + 1,); sentence i is ids[offsets[i] : offsets[i + 1]]

Two bytes per token if the vocabulary allows it, so that 10 million pairs of 20 tokens take 0.8 GB.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from regard.errors import DataError


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

    def select(self, which: npt.NDArray[np.bool_]) -> Sentences:
        """The sentences for which ``which`` (sentences,) is True."""
        if which.all():  # the usual case, without a copy
            return self
        lengths = self.lengths
        ends = np.concatenate([[0], np.cumsum(lengths[which], dtype=np.int64)])
        return Sentences(self.ids[np.repeat(which, lengths)], ends)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> npt.NDArray[np.unsignedinteger]:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of tokens of each sentence, (sentences,)."""
        return np.diff(self.offsets)


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
