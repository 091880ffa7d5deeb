"""Dropout: some numbers become 0 in training, and the others grow as much as was lost on average.

    y_i = m_i x_i / (1 - p),    m_i = 0 with probability p, else 1        Srivastava et al. 2014, "Dropout", section 10

Any shape. The mask follows from a seed, which is drawn from the generator that ``torch.manual_seed`` sets.
"""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from regard.kernels.operators.dropout_op import drop
from regard.validation import check_dropout, check_tokens


@final
class Dropout(nn.Module):
    """As ``torch.nn.Dropout``. On a CPU it is faster: threads share the work, and no mask is kept.

    There, for one seed, the bits depend on neither the number of threads nor the processor, but are not those of torch;
    and a number that is dropped becomes 0 even if it is NaN or infinite, which torch's does not.
    """

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        check_dropout(p)
        self.p = p

    def forward(self, tokens: Tensor) -> Tensor:
        """Dropped in training; in evaluation, and where ``p`` is 0, the tokens as they are."""
        if not self.training or self.p == 0:
            return tokens
        check_tokens("tokens", tokens, "(.., width)")
        return drop(tokens, self.p)

    def extra_repr(self) -> str:
        """For printing."""
        return f"p={self.p}"
