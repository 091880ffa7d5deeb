"""``Mechanism``: how tokens mix, as a module ``(query, key, value, mask=None) -> output``.

    query (batch, heads, queries, head_dim), key and value (batch, key_heads, keys, head_dim) -> (batch, heads,
    queries, value_dim)

A mechanism computes ``attend`` and says what it has no form for (``refuses``). The rest follows:

    weights     every mechanism here is linear in its values, o_i = sum_j w_ij v_j, so row i of its weights is the
                gradient of o_i with respect to the values (``weights_by_gradient``), whether it ever forms them or not
    observe     statistics of those rows, a few at a time, in linear memory
    step        one call of decoding, on top of what ``empty_state`` grew to: keys and values, unless it says otherwise

A subclass overrides these where it has a faster way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.contract import Observation
from regard.errors import RefusedError, ShapeError, check_size
from regard.kernels.reference import attention as reference_attention
from regard.kernels.reference import observe as reference_observe
from regard.kernels.request import Bias, Request
from regard.masks.base import Mask
from regard.mechanisms.key_value_cache import KeyValueCache
from regard.mechanisms.paged_cache import PagedCache
from regard.mechanisms.state import State, wrong_state_error
from regard.mechanisms.steps import Steps
from regard.mechanisms.weights import observe_by_weights, weights_by_gradient
from regard.validation import check_dropout, check_tokens, check_top, make_request, query_rows


@explain_arguments
class Mechanism(nn.Module, ABC):
    """How tokens mix. Made for ``heads`` query heads of ``head_dim``.

    ``dropout`` is the probability with which a weight is dropped in training.
    """

    implementations: ClassVar[tuple[str, ...]] = ()
    """What its option ``impl`` may name, beside "auto"; empty where it has no such option."""
    weights_are: ClassVar[Literal["distribution", "non-negative", "signed"]] = "distribution"
    """What the weights of a query are: 0 or more with a sum of 1, 0 or more with any sum, or of either sign."""
    approximates: ClassVar[str | None] = None
    """The mechanism in the catalogue whose output it comes near to; None computes an equation of its own, exactly."""

    def __init__(self, *, heads: int, head_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        check_size("heads", heads)
        check_size("head_dim", head_dim)
        check_dropout(dropout)
        self.heads, self.head_dim, self.dropout = heads, head_dim, dropout

    @property
    def scale(self) -> float:
        """What scores are multiplied with; a position's bias may need to know."""
        return 1.0

    def refuses(self, request: Request) -> str | None:
        """Why it has no form for a call, in one clause, such as for a mask or a bias; None if it has."""
        del request
        return None

    @final
    def refuses_mask(self, mask: Mask) -> str | None:
        """Why it has no form for a mask of any lengths, such as ``masks.causal()``; None if it has."""
        tokens = torch.empty(1, self.heads, 2, self.head_dim, device="meta")
        return self.refuses(Request(tokens, tokens, tokens, mask, None, self.scale))

    @abstractmethod
    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """The output of a call that was checked and is not refused."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None = None, *, bias: Bias | None = None
    ) -> Tensor:
        """The output (batch, heads, queries, value_dim).

        Raises as ``regard.attention`` does, and RefusedError for what the mechanism has no form for.
        """
        return self.attend(self.make_request(query, key, value, mask, bias))

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
        request = self.make_request(query, key, empty_values(key), mask, bias)
        asked = query_rows(rows, query.shape[2], query.device)
        return self.row_weights(request, request.frame.all_rows(query.device) if asked is None else asked)

    def row_weights(self, request: Request, rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows keys"]:
        """The weights of the queries ``rows``, in float32 for half precision; NaN where a query that may see something
        cannot be computed. The values of the request do not matter.
        """
        return weights_by_gradient(self.attend, request, rows)

    def steps(self, request: Request) -> Steps | None:
        """What the weights of a call are made from, step by step; None where there is nothing but the weights."""
        del request
        return None

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
        """Output and statistics of the weights, before dropout; as ``regard.observe``.

        The entropy is None where the weights are no distribution, and lse where there are no scores.
        """
        request = self.make_request(query, key, value, mask, bias)
        check_top(top, request.frame.keys)
        asked = query_rows(rows, request.frame.queries, request.device)
        return observe_by_weights(
            self.attend, self.row_weights, request, top=top, rows=asked, entropy=self.weights_are == "distribution"
        )

    def empty_state(self) -> State:
        """What it carries before the first step of decoding."""
        return KeyValueCache.empty()

    def step(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        state: State,
        mask: Mask | None = None,
        *,
        bias: Bias | None = None,
    ) -> tuple[Tensor, State]:
        """The output for new queries at the end of all tokens, and the state that holds the new keys and values too.

        Args:
            query, key, value: those of the new tokens.
            state: what ``empty_state`` or an earlier step gave; or a ``PagedCache``, whose sequences have lengths of
                their own, and whose queries stand at the end of each.
            mask, bias: over the new queries and all keys, those in the state included.

        Raises OptionError for a state of another kind.
        """
        if isinstance(state, PagedCache):
            return self._step_paged(query, key, value, state, mask, bias)
        if not isinstance(state, KeyValueCache):
            raise wrong_state_error(state, KeyValueCache, type(self).__name__)
        state = state.extended(key, value)
        output: Tensor = self(query, state.key, state.value, mask, bias=bias)
        return output, state

    def _step_paged(
        self, query: Tensor, key: Tensor, value: Tensor, state: PagedCache, mask: Mask | None, bias: Bias | None
    ) -> tuple[Tensor, State]:
        """``step`` for sequences of different lengths: one after the other."""
        state = state.extended(key, value)
        outputs = [
            self(query[entry : entry + 1], *state.tokens(entry), mask, bias=bias) for entry in range(state.batch)
        ]
        return torch.cat(outputs) if outputs else value.new_zeros(*query.shape[:3], value.shape[3]), state

    def make_request(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, bias: Bias | None) -> Request:
        """A call, its arguments checked against each other and against the mechanism.

        Raises ShapeError, DtypeError, DeviceError, OptionError, and RefusedError for what ``refuses`` names.
        """
        request = make_request(query, key, value, mask=mask, bias=bias, scale=self.scale, dropout=self.active_dropout)
        if query.shape[1] != self.heads or query.shape[3] != self.head_dim:
            raise ShapeError(
                f"query does not fit {type(self).__name__}",
                expected=f"(batch, {self.heads}, queries, {self.head_dim})",
                got=f"{tuple(query.shape)}",
                do="build the mechanism with the heads and head_dim of the query",
            )
        reason = self.refuses(request)
        if reason is not None:
            raise self.refusal_error(reason, request)
        return request

    def refusal_error(self, reason: str, request: Request) -> RefusedError:
        """The error for a call that there is no form for."""
        return RefusedError(
            f"{type(self).__name__} refuses: {reason}",
            expected="a call that it has a form for",
            got=request.describe(),
            do="regard.catalogue() tells which masks each mechanism takes; dot_product takes all",
        )

    @property
    def active_dropout(self) -> float:
        """The dropout now in force: 0 outside of training."""
        return self.dropout if self.training else 0.0

    def extra_repr(self) -> str:
        """For printing."""
        return f"heads={self.heads}, head_dim={self.head_dim}, dropout={self.dropout:g}"


@explain_arguments
def empty_values(key: Tensor) -> Tensor:
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

    @final
    def make_problem(self, request: Request) -> reference_attention.ScoreProblem:
        """The call in the form that plain torch computes."""
        return reference_attention.make_problem(
            self.score,
            request.query,
            request.key,
            request.value,
            mask=request.mask,
            bias=request.bias,
            scale=self.scale,
            score_parameters=tuple(self.parameters()),
        )

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """The output, in plain torch."""
        return reference_attention.compute_output(
            self.make_problem(request), dropout=request.dropout, dtype=request.query.dtype
        )

    def row_weights(self, request: Request, rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows keys"]:
        """The softmax of the scores of some queries."""
        return reference_attention.compute_weights(self.make_problem(request), rows)

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
        request = self.make_request(query, key, value, mask, bias)
        check_top(top, request.frame.keys)
        asked = query_rows(rows, request.frame.queries, request.device)
        return reference_observe.observe(self.make_problem(request), top=top, rows=asked, dtype=query.dtype)
