"""Residual connections around a sublayer, with a norm after it, before it, or both.

post-norm   norm(x + dropout(sublayer(x)))      Vaswani et al. 2017, section 5.4
pre-norm    x + dropout(sublayer(norm(x)))      Xiong et al. 2020, figure 1b; a stack of them ends with one more norm
sandwich    x + dropout(output_norm(sublayer(norm(x))))         Ding et al. 2021 (CogView), section 2.4; as pre-norm
none        dropout(sublayer(norm(x)))          Jaegle et al. 2021 (Perceiver IO), appendix E: queries are positions,
                                                and outputs something else
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

from torch import Tensor, nn

from regard.errors import check_kind
from regard.layers.dropout import Dropout


class Residual(nn.Module, ABC):
    """Residual connection around a sublayer. ``norm`` is a module on (batch, length, width), such as LayerNorm."""

    def __init__(self, norm: nn.Module, *, dropout: float = 0.0) -> None:
        super().__init__()
        check_kind("norm", norm, nn.Module, do="for example torch.nn.LayerNorm(width)")
        self.norm = norm
        self.dropout = Dropout(dropout)

    @abstractmethod
    def forward(self, tokens: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply the sublayer and its residual connection to tokens (batch, length, width)."""


@final
class PostNorm(Residual):
    """Post-norm residual connection: norm(x + dropout(sublayer(x)))."""

    def forward(self, tokens: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Compute norm(x + dropout(sublayer(x))) of tokens (batch, length, width)."""
        output: Tensor = self.norm(tokens + self.dropout(sublayer(tokens)))
        return output


@final
class PreNorm(Residual):
    """Pre-norm residual connection: x + dropout(sublayer(norm(x)))."""

    def forward(self, tokens: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Compute x + dropout(sublayer(norm(x))) of tokens (batch, length, width)."""
        output: Tensor = tokens + self.dropout(sublayer(self.norm(tokens)))
        return output


@final
class SandwichNorm(Residual):
    """Residual connection with norms before and after the sublayer: x + dropout(output_norm(sublayer(norm(x))))."""

    def __init__(self, norm: nn.Module, *, output_norm: nn.Module, dropout: float = 0.0) -> None:
        super().__init__(norm, dropout=dropout)
        check_kind("output_norm", output_norm, nn.Module, do="for example torch.nn.LayerNorm(width)")
        self.output_norm = output_norm

    def forward(self, tokens: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Compute x + dropout(output_norm(sublayer(norm(x)))) of tokens (batch, length, width)."""
        output: Tensor = tokens + self.dropout(self.output_norm(sublayer(self.norm(tokens))))
        return output


@final
class NoResidual(Residual):
    """Norm and sublayer without a residual connection: dropout(sublayer(norm(x)))."""

    def forward(self, tokens: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Compute dropout(sublayer(norm(x))) of tokens (batch, length, width)."""
        output: Tensor = self.dropout(sublayer(self.norm(tokens)))
        return output
