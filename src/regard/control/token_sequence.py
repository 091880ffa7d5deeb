"""A sequence of an agent's tokens: ids, places, and the pixels of patches.

    ids      (length,)                    see ``token_ranges.py``
    local    (length,)                    position within the observation; -1 for the separator and actions
    target   (length,) bool               whether the token is predicted: texts and actions (equation 2)
    patches  (patches, channels, 16, 16)  uint8, one for each id that is a patch, in order
    places   (patches, 4)                 the rows and columns of its picture that a patch covers, in [0, 1]

Reed et al. 2022, "A generalist agent", section 2.3: L = - sum_l m(l) log p(s_l | s_1 .. s_l-1), m the targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from regard.arguments import explain_arguments
from regard.fields import repr_of_fields


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class TokenSequence:
    """Tokens of one time step, or of several consecutive ones."""

    __repr__ = repr_of_fields

    ids: NDArray[np.int64]
    local: NDArray[np.int64]
    target: NDArray[np.bool_]
    patches: NDArray[np.uint8]
    places: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of_values(cls, ids: NDArray[np.int64], *, local: int) -> TokenSequence:
        """The sequence of predicted values that share a local position."""
        return cls(
            ids=ids,
            local=np.full(len(ids), local, dtype=np.int64),
            target=np.ones(len(ids), dtype=bool),
            patches=np.zeros((0, 0, 16, 16), np.uint8),
            places=np.zeros((0, 4), np.float32),
        )

    @classmethod
    def joined(cls, sequences: Sequence[TokenSequence]) -> TokenSequence:
        """Concatenate sequences; at least one."""

        def join(name: str) -> NDArray[Any]:
            return np.concatenate([getattr(sequence, name) for sequence in sequences])

        pictured = [sequence.patches for sequence in sequences if len(sequence.patches)]
        patches = np.concatenate(pictured) if pictured else sequences[0].patches
        return cls(join("ids"), join("local"), join("target"), patches, join("places"))
