"""Stochastic depth: in training, skip a sublayer for random entries of the batch.

    y_b = m_b x_b / (1 - p),    m_b = 0 with probability p, else 1        Huang et al. 2016, "Deep networks with
                                                                          stochastic depth", section 3

One m_b for each entry of the batch, in front of the residual connection: x (batch, .., width) -> the same shape. Huang
et al. leave out the division and scale in evaluation instead; published image transformers divide.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from regard.errors import check_dropout
from regard.validation import check_tokens


@final
class StochasticDepth(nn.Module):
    """Stochastic depth with the probability ``p`` of skipping the sublayer."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        check_dropout(p)
        self.p = float(p)

    def forward(self, tokens: Tensor) -> Tensor:
        """Set random entries of the batch to 0 in training; else, or if ``p`` is 0, return the tokens unchanged."""
        if not self.training or self.p == 0:
            return tokens
        check_tokens("tokens", tokens, "(batch, .., width)")
        kept = torch.rand(tokens.shape[:1], device=tokens.device) >= self.p
        by_entry = kept.view(-1, *(1,) * (tokens.dim() - 1))
        return torch.where(by_entry, tokens / (1 - self.p), torch.zeros((), dtype=tokens.dtype, device=tokens.device))

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"p={self.p}"
