"""Residual connections around a sublayer, with a norm after it, before it, or both.

post-norm   norm(x + dropout(sublayer(x)))      Vaswani et al. 2017, section 5.4
pre-norm    x + dropout(sublayer(norm(x)))      Xiong et al. 2020, figure 1b; a stack of them ends with one more norm
sandwich    x + dropout(output_norm(sublayer(norm(x))))         Ding et al. 2021 (CogView), section 2.4; as pre-norm
none        dropout(sublayer(norm(x)))          Jaegle et al. 2021 (Perceiver IO), appendix E: queries are positions,
                                                and outputs something else

They differ in where norms are, so each states its norms, and one equation computes all:

    after(x + dropout(of_output(sublayer(before(x)))))          without x if it is not added
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, final

from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import check_choice, check_kind, check_number, check_size
from regard.layers.dropout import Dropout


@final
class ResidualNorms(NamedTuple):
    """The norms of a residual connection: before the sublayer, of its output, and after the sum; None is no norm.

    ``adds`` is whether the tokens are added to the output of the sublayer.
    """

    before: nn.Module | None = None
    of_output: nn.Module | None = None
    after: nn.Module | None = None
    adds: bool = True


@explain_arguments
class Residual(nn.Module, ABC):
    """Residual connection around a sublayer. ``norm`` is a module on (batch, length, width), such as LayerNorm."""

    def __init__(self, norm: nn.Module, *, dropout: float = 0.0) -> None:
        super().__init__()
        check_kind("norm", norm, nn.Module, do="for example torch.nn.LayerNorm(width)")
        self.norm = norm
        self.dropout = Dropout(dropout)

    @property
    @abstractmethod
    def norms(self) -> ResidualNorms:
        """Where the norms are."""

    def forward(self, tokens: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply the sublayer and its residual connection to tokens (batch, length, width)."""
        before, of_output, after, adds = self.norms
        output = sublayer(tokens if before is None else before(tokens))
        output = self.dropout(output if of_output is None else of_output(output))
        total: Tensor = tokens + output if adds else output
        return total if after is None else after(total)


@final
class PostNorm(Residual):
    """Post-norm residual connection: norm(x + dropout(sublayer(x)))."""

    @property
    def norms(self) -> ResidualNorms:
        """One norm, after the sum."""
        return ResidualNorms(after=self._modules["norm"])


@final
class PreNorm(Residual):
    """Pre-norm residual connection: x + dropout(sublayer(norm(x)))."""

    @property
    def norms(self) -> ResidualNorms:
        """One norm, before the sublayer."""
        return ResidualNorms(before=self._modules["norm"])


@final
@explain_arguments
class SandwichNorm(Residual):
    """Residual connection with norms before and after the sublayer: x + dropout(output_norm(sublayer(norm(x))))."""

    def __init__(self, norm: nn.Module, *, output_norm: nn.Module, dropout: float = 0.0) -> None:
        super().__init__(norm, dropout=dropout)
        check_kind("output_norm", output_norm, nn.Module, do="for example torch.nn.LayerNorm(width)")
        self.output_norm = output_norm

    @property
    def norms(self) -> ResidualNorms:
        """One norm before the sublayer, and one of its output."""
        return ResidualNorms(before=self._modules["norm"], of_output=self._modules["output_norm"])


@final
class NoResidual(Residual):
    """Norm and sublayer without a residual connection: dropout(sublayer(norm(x)))."""

    @property
    def norms(self) -> ResidualNorms:
        """One norm, before the sublayer."""
        return ResidualNorms(before=self._modules["norm"], adds=False)


_BY_NAME: dict[str, type[Residual]] = {"post": PostNorm, "pre": PreNorm}


def make_residual(norm: str, width: int, epsilon: float, dropout: float) -> Residual:
    """Make a residual connection, "post" or "pre", with a LayerNorm; ``dropout`` applies to the output of the sublayer.

    Raises OptionError for arguments that do not fit.
    """
    check_choice("norm", norm, _BY_NAME)
    check_size("width", width)
    check_number("epsilon", epsilon, minimum=0.0)
    return _BY_NAME[norm](nn.LayerNorm(width, eps=epsilon), dropout=dropout)
