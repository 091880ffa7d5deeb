"""Storage for the keys or values that one layer gets in successive calls, without storing a token twice.

While a model generates, each call passes all tokens of its cache. If a call starts with the tokens of the last one, bit
for bit, only the new ones are appended, so that memory is linear in the number of tokens. The storage is a copy: a
static cache is written in place.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor


@final
class TokenBuffer:
    """The tokens of the last call, in memory that may have room for more."""

    def __init__(self) -> None:
        self._memory: Tensor | None = None
        self._length = 0

    def store(self, tokens: Float[Tensor, "batch heads length size"]) -> Float[Tensor, "batch heads length size"]:
        """Return a copy of ``tokens`` that shares memory with the tokens of earlier calls, where they are equal."""
        length = tokens.shape[2]
        with torch.inference_mode(False), torch.no_grad():
            if self._memory is None or not self._is_extended_by(self._memory, tokens):
                self._memory = tokens.detach().clone()
            else:
                if length > self._memory.shape[2]:
                    self._memory = _with_room(self._memory, 2 * length)
                self._memory[:, :, self._length : length] = tokens[:, :, self._length :]
            self._length = length
            return self._memory[:, :, :length]

    def _is_extended_by(self, memory: Tensor, tokens: Tensor) -> bool:
        """Whether ``tokens`` start with those that are stored; NaN equals nothing."""
        return (
            (tokens.dtype, tokens.device) == (memory.dtype, memory.device)
            and tokens.shape[:2] == memory.shape[:2]
            and tokens.shape[3] == memory.shape[3]
            and tokens.shape[2] >= self._length
            and torch.equal(tokens[:, :, : self._length], memory[:, :, : self._length])
        )


def _with_room(memory: Tensor, length: int) -> Tensor:
    larger = memory.new_empty(*memory.shape[:2], length, memory.shape[3])
    larger[:, :, : memory.shape[2]] = memory
    return larger
