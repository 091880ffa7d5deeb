"""Top-k attention: each query attends to the ``keys`` keys with the highest scores, and to no others.

    o_i = softmax(scale * q_i . k_j) v_j      over the ``keys`` largest q_i . k_j that the mask allows

Gupta et al. 2021, "Memory-efficient transformers via top-k attention", equation 2; scale = 1/sqrt(head_dim). Of all
choices of as many keys it keeps the largest part of exact attention's weights, so it is the yardstick for mechanisms
that choose without looking at each key. Of keys with equal scores the first are chosen.

All scores are computed: time is n^2 d for the choice, half the products of exact attention, and n keys d for attention
to the chosen keys. On a CPU a kernel chooses by float32 products with an error bound, and computes in float64 only
scores that these cannot tell apart; another one reads the rows of the chosen keys. Memory is linear in length times
``keys``. float64 tokens and other devices take all scores in float64, a few rows at a time, and a mask. Gradients flow
through the chosen keys only. It cannot take a bias.

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim).
"""

from __future__ import annotations

from typing import final

from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import check_size
from regard.kernels.request import Request
from regard.mechanisms.chosen_keys import (
    ChosenKeysMechanism,
    attend_exactly,
    attend_to_keys,
    mark_broken,
    ranking_tokens,
    visible_keys,
)
from regard.mechanisms.highest_scores import choose_highest, mark_highest, rounded_scores


@final
@explain_arguments
class TopK(ChosenKeysMechanism):
    """Top-k attention: softmax(scale * Q K^T) V over the ``keys`` highest scores of each query."""

    def __init__(self, *, heads: int, head_dim: int, keys: int = 64, dropout: float = 0.0) -> None:
        super().__init__(heads=heads, head_dim=head_dim, dropout=dropout)
        check_size("keys", keys)
        self.keys = int(keys)

    def choose(self, request: Request, rows: Int[Tensor, " rows"]) -> Bool[Tensor, "batch heads rows keys"]:
        """Choose the keys with the highest scores."""
        query = request.query[:, :, rows].detach().double()
        key, finite = ranking_tokens(request.repeated_key)
        scores = mark_broken(rounded_scores(query @ key.mT, request.query.dtype), finite)
        return mark_highest(scores, visible_keys(request, rows), self.keys)

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output; by a choice and rows of the chosen keys in kernels where they take the tensors."""
        if self.keys >= request.frame.keys:  # nothing is left out
            return attend_exactly(request.replace(inputs={}))
        positions = choose_highest(request, request.query, request.key, None, None, self.keys, summed=False)
        return self.attend_under_mask(request) if positions is None else attend_to_keys(request, positions)

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"{super().extra_repr()}, keys={self.keys}"
