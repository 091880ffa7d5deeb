"""Greedy search: the most probable token in each step.

    y_t = argmax_v log P(v | y_1 .. y_t-1, x)

The fastest strategy; equal to beam search of width 1 without penalties.
"""

from __future__ import annotations

from typing import final

from jaxtyping import Int
from torch import Tensor

from regard.models.base import Decoder
from regard.search.base import Hypothesis, Search
from regard.search.token_by_token import decode_token_by_token


@final
class Greedy(Search):
    """Greedy search: writes the most probable token in each step. A hypothesis' score is its log-probability."""

    def __repr__(self) -> str:
        return "Greedy()"

    def decode(
        self,
        model: Decoder,
        source: Int[Tensor, "batch length"],
        lengths: Int[Tensor, " batch"],
        most: Int[Tensor, " batch"],
    ) -> list[list[Hypothesis]]:
        """Write the most probable token of each source, step by step. See ``Search.decode``."""
        return decode_token_by_token(model, source, lengths, most, lambda known, rows, place: known.argmax(dim=1))
