"""Dropout: in training, set random elements to 0 and scale the others so that the expectation stays the same.

    y_i = m_i x_i / (1 - p),    m_i = 0 with probability p, else 1        Srivastava et al. 2014, "Dropout", section 10

Any shape. The mask is a function of a seed, which is drawn from the generator that ``torch.manual_seed`` seeds.
"""

from __future__ import annotations

from typing import final

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
