"""Greedy search: the most probable token in each step.

    y_t = argmax_v log P(v | y_1 .. y_t-1, x)

The fastest strategy; equal to beam search of width 1 without penalties.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.arguments import explain_arguments
from regard.kernels.operators.likeliest_class_op import can_find, find_likeliest
from regard.search.token_by_token import ChosenTokens, TokenSearch, check_repetition_penalty


@final
@explain_arguments
class Greedy(TokenSearch):
    """Greedy search: writes the most probable token in each step. A hypothesis' score is its log-probability.

    ``repetition_penalty`` above 1 makes tokens that occurred before less likely, see ``token_by_token``. Raises
    OptionError unless it is above 0.
    """

    def __init__(self, *, repetition_penalty: float = 1.0) -> None:
        self.repetition_penalty = check_repetition_penalty(repetition_penalty)

    def __repr__(self) -> str:
        return "Greedy()" if self.repetition_penalty == 1 else f"Greedy(repetition_penalty={self.repetition_penalty})"

    def draw_numbers(self, ids: Sequence[int], max_tokens: int) -> Float[Tensor, "1 max_tokens"]:
        """Return zeros. See ``TokenSearch.draw_numbers``."""
        del ids
        return torch.zeros(1, max_tokens)

    def choose(self, known: Float[Tensor, "rows vocabulary"], numbers: Tensor) -> Int[Tensor, " rows"]:
        """Choose the most probable token. See ``TokenSearch.choose``."""
        del numbers
        return known.argmax(dim=1)

    def choose_from_logits(self, logits: Tensor, banned: Tensor, numbers: Tensor, seen: Tensor | None) -> ChosenTokens:
        """Choose the most probable token, in one pass by a kernel if there is one. See ``TokenSearch``."""
        if seen is None and can_find(logits, banned):
            return ChosenTokens(*find_likeliest(logits, banned))
        return super().choose_from_logits(logits, banned, numbers, seen)
