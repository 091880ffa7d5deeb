"""Greedy search: the likeliest token, again and again.

    y_t = argmax_v log P(v | y_1 .. y_t-1, x)

The fastest strategy, and beam search of width 1 without penalties.
"""

from __future__ import annotations

from typing import final

from jaxtyping import Int
from torch import Tensor

from regard.models.sequence_to_sequence import SequenceToSequence
from regard.search.base import Hypothesis, Search
from regard.search.token_by_token import follow


@final
class Greedy(Search):
    """The likeliest token at each place. A hypothesis' score is its log-probability."""

    def __repr__(self) -> str:
        return "Greedy()"

    def found(
        self,
        model: SequenceToSequence,
        source: Int[Tensor, "batch length"],
        lengths: Int[Tensor, " batch"],
        most: Int[Tensor, " batch"],
    ) -> list[list[Hypothesis]]:
        """See ``Search.found``."""
        return follow(model, source, lengths, most, lambda known, rows, place: known.argmax(dim=1))
