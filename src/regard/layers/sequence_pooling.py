"""Sequence pooling: the mean of all tokens, weighted by an attention that the tokens decide.

    a = softmax over tokens of (w . x_i + b),    z = sum_i a_i x_i

tokens (batch, tokens, width) -> (batch, width). It takes the place of a class token.
Hassani et al. 2021, "Escaping the big data paradigm with compact Transformers", section 3.2 and equation 2.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import ShapeError, check_size, check_weights
from regard.validation import check_tokens


@final
class SequencePooling(nn.Module):
    """The weighted mean of tokens of ``width``; ``score`` is the linear layer of their scores."""

    def __init__(self, width: int) -> None:
        super().__init__()
        check_size("width", width)
        check_weights(width=width)
        self.score = nn.Linear(width, 1)

    def forward(self, tokens: Tensor) -> Float[Tensor, "batch width"]:
        """Compute the weighted mean of tokens (batch, tokens, width). Raises ShapeError for another width."""
        return torch.matmul(self.weights(tokens)[:, None], tokens)[:, 0]

    def weights(self, tokens: Tensor) -> Float[Tensor, "batch tokens"]:
        """Compute the weight of each token (batch, tokens, width): positive numbers whose sum is 1."""
        expected = f"(batch, tokens, {self.score.in_features}), with a token at least"
        check_tokens("tokens", tokens, expected)
        if tokens.dim() != 3 or tokens.shape[1] == 0 or tokens.shape[2] != self.score.in_features:
            raise ShapeError(
                "tokens do not fit the pooling",
                expected=expected,
                got=str(tuple(tokens.shape)),
                do="build the pooling with the width of its tokens",
            )
        return torch.softmax(self.score(tokens)[..., 0], dim=1)
