"""``Mechanism``: how tokens mix, as a module ``(query, key, value, mask=None) -> output``.

    query (batch, heads, queries, head_dim), key and value (batch, key_heads, keys, head_dim) -> (batch, heads,
    queries, value_dim)

Beside the output a mechanism can tell what it looks at: ``observe`` gives statistics in linear memory, ``weights`` the
exact weights of some or all queries, when asked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.contract import Observation
from regard.errors import ShapeError, check_size
from regard.kernels import scored, statistics
from regard.kernels.request import Bias, Request
from regard.masks.base import Mask
from regard.shapes import check_dropout, check_tokens, check_top, checked, query_rows


@explain_arguments
class Mechanism(nn.Module, ABC):
    """How tokens mix. Made for ``heads`` query heads of ``head_dim``.

    ``dropout`` is the probability with which a weight is dropped in training.
    """

    implementations: ClassVar[tuple[str, ...]] = ()
    """What its option ``impl`` may name, beside "auto"; empty where it has no such option."""

    def __init__(self, *, heads: int, head_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        check_size("heads", heads)
        check_size("head_dim", head_dim)
        check_dropout(dropout)
        self.heads, self.head_dim, self.dropout = heads, head_dim, dropout

    @abstractmethod
    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None = None, *, bias: Bias | None = None
    ) -> Tensor:
        """The output (batch, heads, queries, value_dim). Raises as ``regard.attention`` does."""

    @abstractmethod
    def observe(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | None = None,
        *,
        bias: Bias | None = None,
        top: int = 8,
        rows: Sequence[int] | Tensor | None = None,
    ) -> Observation:
        """Output and statistics of the weights, before dropout; as ``regard.observe``."""

    @abstractmethod
    def weights(
        self,
        query: Tensor,
        key: Tensor,
        mask: Mask | None = None,
        *,
        bias: Bias | None = None,
        rows: Sequence[int] | Tensor | None = None,
    ) -> Tensor:
        """Exact weights (batch, heads, rows, keys) of the queries ``rows``; of all queries if None. Before dropout."""

    def checked(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | None,
        bias: Bias | None,
        scale: float | None,
    ) -> Request:
        """The arguments, checked against each other and against ``heads`` and ``head_dim``."""
        request = checked(query, key, value, mask=mask, bias=bias, scale=scale, dropout=self.active_dropout)
        if query.shape[1] != self.heads or query.shape[3] != self.head_dim:
            raise ShapeError(
                f"query does not fit {type(self).__name__}",
                expected=f"(batch, {self.heads}, queries, {self.head_dim})",
                got=f"{tuple(query.shape)}",
                do="build the mechanism with the heads and head_dim of the query",
            )
        return request

    @property
    def active_dropout(self) -> float:
        """The dropout now in force: 0 outside of training."""
        return self.dropout if self.training else 0.0

    def extra_repr(self) -> str:
        """For printing."""
        return f"heads={self.heads}, head_dim={self.head_dim}, dropout={self.dropout:g}"


@explain_arguments
def no_values(key: Tensor) -> Tensor:
    """Values (batch, key_heads, keys, 0), for a call that asks for weights alone."""
    check_tokens("key", key, "(batch, key_heads, keys, head_dim)")
    return key[..., :0] if key.dim() else key


class ScoredMechanism(Mechanism):
    """An exact mechanism that differs from the others in its score alone: softmax(score + bias) V."""

    @abstractmethod
    def score(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
    ) -> Float[Tensor, "batch heads rows keys"]:
        """The scores of some queries, in the dtype of ``query``."""

    @property
    def scale(self) -> float:
        """What a position's bias takes as the scale of scores."""
        return 1.0

    @final
    def problem(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, bias: Bias | None
    ) -> scored.Problem:
        """The call in the form that plain torch computes."""
        self.checked(query, key, value, mask, bias, self.scale)
        return scored.pose(
            self.score,
            query,
            key,
            value,
            mask=mask,
            bias=bias,
            scale=self.scale,
            trained=tuple(self.parameters()),
        )

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None = None, *, bias: Bias | None = None
    ) -> Tensor:
        """The output (batch, heads, queries, value_dim)."""
        problem = self.problem(query, key, value, mask, bias)
        return scored.attend(problem, dropout=self.active_dropout, dtype=query.dtype)

    def observe(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | None = None,
        *,
        bias: Bias | None = None,
        top: int = 8,
        rows: Sequence[int] | Tensor | None = None,
    ) -> Observation:
        """Output and statistics of the weights, before dropout."""
        problem = self.problem(query, key, value, mask, bias)
        check_top(top, problem.frame.keys)
        return statistics.observe(
            problem, top=top, rows=query_rows(rows, query.shape[2], query.device), dtype=query.dtype
        )

    def weights(
        self,
        query: Tensor,
        key: Tensor,
        mask: Mask | None = None,
        *,
        bias: Bias | None = None,
        rows: Sequence[int] | Tensor | None = None,
    ) -> Tensor:
        """Exact weights of some or all queries."""
        problem = self.problem(query, key, no_values(key), mask, bias)
        return scored.weights_of(problem, query_rows(rows, query.shape[2], query.device))
