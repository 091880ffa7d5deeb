"""``LinearStateMechanism``: base class of mechanisms whose state is a matrix of constant size (``LinearState``).

    o_i = read(q_i, S_i),    S_i = update(S_(i-1), k_i, v_i)

All queries share the state, so a mask is causal, hides keys from every query (padding), or both. In subclasses whose
state can begin again, a row may have several texts (``masks.documents``), each a run of tokens. A key that is hidden
from every query does not change the state. There are no scores, so there is no bias of scores and no dropout of
weights. A subclass computes the outputs for new tokens after a state, and the next state (``continue_from``); the
call for a whole text is a step from the empty state, whose next state is not computed.

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeAlias, final

from jaxtyping import Bool, Float
from torch import Tensor

from regard.contract import Frame
from regard.kernels.autocast import disable_autocast
from regard.kernels.request import Bias, Request
from regard.kernels.select import impl_names
from regard.masks.base import Mask
from regard.masks.causal_parts import CausalParts, causal_parts, causal_parts_of_texts
from regard.mechanisms.base import Mechanism, Traits
from regard.mechanisms.linear_state import LinearState
from regard.mechanisms.state import State, wrong_state_error
from regard.mechanisms.steps import States
from regard.validation import check_mask

NextState: TypeAlias = Callable[[], LinearState]
"""Computes the state after the new tokens: called only if the state is asked for."""


class LinearStateMechanism(Mechanism):
    """Attention with a state of constant size, for subclasses that write ``continue_from``, ``state_size`` and
    ``last_key``.

    ``impl`` is "native" (kernels, on a CPU), "fla" (flash-linear-attention's, on a GPU), "reference" (plain torch), or
    "auto": native if it supports the call, fla in half precision on a GPU, else reference.
    ``weights`` with gradients are plain torch.
    """

    traits = Traits(implementations=impl_names("scan"), ignores_hidden_keys=True)
    begins_again: ClassVar[bool] = False
    """Whether the state can begin again within a row, for several texts in it."""
    sums_ahead: ClassVar[bool] = False
    """Whether queries see later keys unless a causal mask hides them: then the state begins again under such a mask."""

    def __init__(self, *, heads: int, head_dim: int, impl: str) -> None:
        super().__init__(heads=heads, head_dim=head_dim)
        self.impl = self.check_impl(impl)

    @abstractmethod
    def state_size(self, value_dim: int) -> tuple[int, int]:
        """Return the rows and columns of the state's matrix."""

    @abstractmethod
    def last_key(self, parts: CausalParts, frame: Frame) -> int | None:
        """Return the last key that query 0 may attend to, negative if there is none; None if all queries see all."""

    @abstractmethod
    def continue_from(
        self,
        state: LinearState,
        request: Request,
        visible_keys: Bool[Tensor, "#batch #heads keys"] | None,
        last_key: int | None,
        impl: str,
        starts: Bool[Tensor, "batch keys"] | None = None,
    ) -> tuple[Float[Tensor, "batch heads queries value_dim"], NextState]:
        """Compute the output for the tokens of a request, which come after those in ``state``.

        ``visible_keys`` is False for keys that are hidden from every query; None if none is. ``last_key`` is the last
        new key that query 0 may attend to. The output may have another dtype than the query. ``starts`` is True where
        the state begins again, if ``begins_again``.
        """

    @final
    def refuses(self, request: Request) -> str | None:
        """Refuse a bias, and masks other than a causal mask, a mask that hides keys from every query, or both."""
        if request.bias is not None:
            return "a bias is added to scores, and attention with a state of constant size has no scores"
        if self._split(request) is None:
            if self.begins_again and self.sums_ahead:
                return (
                    "all queries share one state, so a mask must be causal, hide keys from all queries, or both, and "
                    "several documents must be runs of tokens that are both queries and keys, under a causal mask"
                )
            if self.begins_again:
                return (
                    "all queries share one state, so a mask must be causal, hide keys from all queries, or both, and "
                    "several documents must be runs of tokens that are both queries and keys"
                )
            return "all queries share one state, so a mask must be causal, hide keys from all queries, or both"
        return None

    @final
    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output; half precision is computed in float32 and rounded once."""
        return self._attend(request, self.impl)

    @final
    def attend_in_torch(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output without the scan kernels, which have no second derivatives."""
        return self._attend(request, "reference")

    def _attend(self, request: Request, impl: str) -> Float[Tensor, "batch heads queries value_dim"]:
        frame, parts = request.frame, self._split(request)
        assert parts is not None
        with disable_autocast(request.device):
            visible, starts = parts.visible_keys(frame, request.device), self._starts(parts, request)
            last = self.last_key(parts, frame)
            output, _ = self.continue_from(LinearState(), request, visible, last, impl, starts)
            return output.to(request.query.dtype)

    @final
    def states(self, request: Request) -> States | None:
        """Return the updates of the state; None unless each query reads it after its own token."""
        frame, parts = request.frame, self._split(request)
        if frame.queries != frame.keys or parts is None or self.last_key(parts, frame) != 0:
            return None
        with disable_autocast(request.device):
            visible, starts = parts.visible_keys(frame, request.device), self._starts(parts, request)
            return self.make_states(request, visible, starts)

    @abstractmethod
    def make_states(
        self,
        request: Request,
        visible_keys: Bool[Tensor, "#batch #heads keys"] | None,
        starts: Bool[Tensor, "batch keys"] | None = None,
    ) -> States:
        """Compute what ``states`` returns for finite tokens of a causal call; ``starts`` as in ``continue_from``."""

    def _split(self, request: Request) -> CausalParts | None:
        """Split the mask of a request; None if it has another form than those that the mechanism supports."""
        if not self.begins_again:
            return causal_parts(request.mask, request.frame)
        parts = causal_parts_of_texts(request.mask, request.frame)
        if self.sums_ahead and parts is not None and parts.texts is not None and parts.high != 0:
            return None
        return parts

    def _starts(self, parts: CausalParts, request: Request) -> Bool[Tensor, "batch keys"] | None:
        return parts.starts(request.query.shape[0], request.device)

    @final
    def empty_state(self) -> LinearState:
        """Make the state before the first token, without a matrix."""
        return LinearState()

    @final
    def step(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        state: State,
        mask: Mask | None = None,
        *,
        bias: Bias | None = None,
        **inputs: Tensor,
    ) -> tuple[Tensor, LinearState]:
        """Compute the output for new queries and the next state, in time and memory independent of ``state.length``.

        ``mask`` is over the new queries and all keys. Its values for earlier keys are ignored: a key updates the state,
        or is hidden, when it is new. Raises RefusedError for a mask whose causal bound is before the first new key, and
        for more new queries than keys in causal attention.
        """
        if not isinstance(state, LinearState):
            raise wrong_state_error(state, LinearState, type(self).__name__)
        request = self.make_request(query, key, value, None, bias, inputs)
        state.check(request, *self.state_size(value.shape[3]))
        known, frame = state.length, Frame(query.shape[2], state.length + key.shape[2])
        if mask is not None:
            check_mask(mask)
            mask.check(query.shape[0], self.heads, frame.queries, frame.keys)
        parts = causal_parts(mask, frame)
        last = None if parts is None else self.last_key(parts, frame)
        if parts is None or (frame.queries > 0 and last is not None and last < known):
            raise self.refusal_error(
                "earlier keys are already in the state, so in causal attention each new query needs a new key, and a "
                "mask must be causal, hide new keys, or both",
                request,
            )
        visible = parts.visible_keys(frame, request.device)
        visible, last = None if visible is None else visible[..., known:], None if last is None else last - known
        with disable_autocast(request.device):
            output, next_state = self.continue_from(state, request, visible, last, self.impl)
            return output.to(query.dtype), next_state()
