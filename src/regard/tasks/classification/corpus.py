"""Labelled texts as token ids in memory, with the labels of each as a row of a matrix."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from regard.tasks.sentences import Sentences


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
