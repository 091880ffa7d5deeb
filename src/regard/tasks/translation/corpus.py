"""Sentence pairs as numbers, in memory: one run of ids for each side, and where each sentence ends.

    source  ids (all tokens of all sentences), offsets (sentences + 1,); sentence i is ids[offsets[i] : offsets[i + 1]]

Two bytes a token where the vocabulary allows it, so that 10 million pairs of 20 tokens take 0.8 GB.
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
    """Sentences of token ids, each as long as it is."""

    ids: npt.NDArray[np.unsignedinteger]
    offsets: npt.NDArray[np.int64]

    @classmethod
    def from_ids(cls, sentences: Iterable[Sequence[int]], vocabulary: int) -> Sentences:
        """The sentences, in the smallest integers that hold the vocabulary. Each is taken once, and not kept."""
        ids, lengths = array("H" if vocabulary <= 2**16 else "I"), array("q", [0])
        for sentence in sentences:
            ids.extend(sentence)
            lengths.append(len(sentence))
        return cls(np.asarray(ids), np.cumsum(lengths, dtype=np.int64))

    def select(self, which: npt.NDArray[np.bool_]) -> Sentences:
        """The sentences that ``which`` (sentences,) is true for."""
        if which.all():  # as a rule, so nothing is copied
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
        """The tokens of each sentence."""
        return np.diff(self.offsets)


@final
@dataclass(frozen=True, eq=False)
class Corpus:
    """Sources and targets, line by line, without the tokens that begin and end a sentence."""

    source: Sentences
    target: Sentences

    def __post_init__(self) -> None:
        if len(self.source) != len(self.target):
            raise DataError(
                "sources and targets are not as many",
                expected="one target for each source",
                got=f"{len(self.source)} and {len(self.target)}",
                do="give pairs",
            )

    def __len__(self) -> int:
        return len(self.source)

    @property
    def digest(self) -> str:
        """A hash of all tokens, in their order: a run goes on only with the data that it began with."""
        hashed = hashlib.sha256()
        for side in (self.source, self.target):
            hashed.update(side.offsets.tobytes())
            hashed.update(side.ids.astype(np.uint32).tobytes())
        return hashed.hexdigest()
