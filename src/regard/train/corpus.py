"""Sentence pairs as numbers, in memory: one run of ids for each side, and where each sentence ends.

    source  ids (all tokens of all sentences), ends (sentences + 1,)    sentence i is ids[ends[i] : ends[i + 1]]

Two bytes a token where the vocabulary allows it, so that 10 million pairs of 20 tokens take 0.8 GB.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import final

import numpy as np
import numpy.typing as npt

from regard.errors import DataError


@final
@dataclass(frozen=True, eq=False)
class Sentences:
    """Sentences of token ids, each as long as it is."""

    ids: npt.NDArray[np.unsignedinteger]
    ends: npt.NDArray[np.int64]

    @classmethod
    def of(cls, sentences: Iterable[Sequence[int]], vocabulary: int) -> Sentences:
        """The sentences, in the smallest integers that hold the vocabulary."""
        listed = list(sentences)
        ends = np.zeros(len(listed) + 1, dtype=np.int64)
        np.cumsum([len(ids) for ids in listed], out=ends[1:])
        dtype = np.uint16 if vocabulary <= 2**16 else np.uint32
        return cls(np.fromiter(chain.from_iterable(listed), dtype=dtype, count=int(ends[-1])), ends)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, index: int) -> npt.NDArray[np.unsignedinteger]:
        return self.ids[self.ends[index] : self.ends[index + 1]]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The tokens of each sentence."""
        return np.diff(self.ends)


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
            hashed.update(side.ends.tobytes())
            hashed.update(side.ids.astype(np.uint32).tobytes())
        return hashed.hexdigest()
