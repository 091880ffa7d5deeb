"""Several texts in each row of a batch, as kernels take them that have sequences of different lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad


@final
@dataclass(frozen=True)
class PackedTexts:
    """The texts of all rows, one behind the other.

    ends       (texts + 1,)   where each text begins among the batch * length tokens, and the number of tokens
    first      (batch,)       the first text of each row
    last       (batch,)       the last text of each row
    continues  (batch,)       whether the first text of a row continues the one before: its first token is no start
    """

    ends: Int[Tensor, " texts_and_one"]
    first: Int[Tensor, " batch"]
    last: Int[Tensor, " batch"]
    continues: Bool[Tensor, " batch"]

    def initial_states(
        self, state: Float[Tensor, "batch heads head_dim value_dim"]
    ) -> Float[Tensor, "texts heads head_dim value_dim"]:
        """Give the state before a row to the first text of the row if it continues; 0 to all other texts."""
        given = state.masked_fill(~self.continues[:, None, None, None], 0.0)
        states = state.new_zeros(self.ends.shape[0] - 1, *state.shape[1:])
        return states.index_copy(0, self.first, given)


def find_texts(starts: Bool[Tensor, "batch length"]) -> PackedTexts:
    """Find the texts of rows of at least one token, by the first tokens of texts. Reads their values."""
    begins = torch.cat([torch.ones_like(starts[:, :1]), starts[:, 1:]], dim=1)
    number = begins.flatten().cumsum(0).view_as(begins) - 1  # of each token's text
    ends = pad(begins.flatten().nonzero()[:, 0], (0, 1), value=begins.numel())
    return PackedTexts(ends, number[:, 0], number[:, -1], ~starts[:, 0])
