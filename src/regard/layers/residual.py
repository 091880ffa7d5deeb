"""How a sublayer joins the stream of tokens.

post-norm   norm(x + dropout(sublayer(x)))      Vaswani et al. 2017, section 5.4
pre-norm    x + dropout(sublayer(norm(x)))      Xiong et al. 2020, figure 1b; a stack of them ends with one more norm
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

from torch import Tensor, nn

from regard.errors import check_kind
from regard.layers.dropout import Dropout


class Residual(nn.Module, ABC):
    """A sublayer's way around itself. ``norm`` is a module on (batch, length, width)."""

    def __init__(self, norm: nn.Module, *, dropout: float = 0.0) -> None:
        super().__init__()
        check_kind("norm", norm, nn.Module, do="for example torch.nn.LayerNorm(width)")
        self.norm = norm
        self.dropout = Dropout(dropout)

    @abstractmethod
    def forward(self, tokens: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """The tokens, changed by the sublayer."""


@final
class PostNorm(Residual):
    """norm(x + dropout(sublayer(x)))."""

    def forward(self, tokens: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """The tokens, changed by the sublayer."""
        output: Tensor = self.norm(tokens + self.dropout(sublayer(tokens)))
        return output


@final
class PreNorm(Residual):
    """x + dropout(sublayer(norm(x)))."""

    def forward(self, tokens: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """The tokens, changed by the sublayer."""
        output: Tensor = tokens + self.dropout(sublayer(self.norm(tokens)))
        return output
