"""Sentence pairs as token ids in memory. 10 million pairs of 20 tokens take 0.8 GB, two bytes per token."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import final

import numpy as np

from regard.errors import DataError
from regard.tasks.sentences import Sentences


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
