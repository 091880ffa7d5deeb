"""Dropout: in training, set random parts to 0 and scale the others so that the expectation stays the same.

    y_i = m_i x_i / (1 - p),    m_i = 0 with probability p, else 1        Srivastava et al. 2014, "Dropout", section 10
    y_b = m_b x_b / (1 - p),    m_b = 0 with probability p, else 1        Huang et al. 2016, "Deep networks with
                                                                          stochastic depth", section 3

``Dropout`` has an m_i for each element, of any shape. The mask is a function of a seed, which is drawn from the
generator that ``torch.manual_seed`` seeds. ``StochasticDepth`` has one m_b for each entry of the batch, in front of the
residual connection, x (batch, .., width) -> the same shape, so that a sublayer is skipped. Huang et al. leave out the
division and scale in evaluation instead; published image transformers divide.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import check_dropout
from regard.kernels.operators.dropout_op import drop
from regard.validation import check_tokens


@final
@explain_arguments
class Dropout(nn.Module):
    """Dropout as ``torch.nn.Dropout``, but faster on a CPU: threads share the work, and no mask is stored.

    On a CPU the bits for a seed depend neither on the number of threads nor on the processor, but differ from torch's;
    and dropped elements become 0 even if they are NaN or infinite, unlike in torch.
    """

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        check_dropout(p)
        self.p = p

    def forward(self, tokens: Tensor) -> Tensor:
        """Apply dropout in training; in evaluation, or if ``p`` is 0, return the tokens unchanged."""
        if not self.training or self.p == 0:
            return tokens
        check_tokens("tokens", tokens, "(.., width)")
        return drop(tokens, self.p)

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"p={self.p}"


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
