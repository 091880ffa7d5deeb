"""``ScanMechanism``: attention whose state is a matrix that decays and is updated token by token.

    S_t = D_t S_(t-1) + k_t u_t^T,    o_t = scale S_t^T q_t        D_t = diag(exp(log_decay_t)), between 0 and 1
    u_t = v_t, or with the delta rule beta_t (v_t - (D_t S_(t-1))^T k_t)

A subclass computes the decays, the rates beta, and what else it does to its tokens (``make_terms``); the causal form,
the decoding state and the promises follow. The scan kernels compute chunks of tokens at once, in time and memory linear
in the length; one token after the other, the same equations are the steps of decoding.

The state is one for all queries, so a mask is causal, hides keys from every query (padding), or both; later keys are
hidden by the mechanism itself. A token that is hidden from every query, such as padding, neither updates the state nor
lets it decay. There are no scores, so there is no bias of scores and no dropout of weights.

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim), S (batch, heads, head_dim, value_dim).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Literal, NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.arguments import explain_arguments
from regard.contract import Frame
from regard.errors import check_choice
from regard.kernels.autocast import disable_autocast
from regard.kernels.implementations.scan import ScanRequest
from regard.kernels.request import Bias, Request
from regard.kernels.results import accumulation_dtype
from regard.kernels.select import impl_names, select
from regard.masks.base import Mask
from regard.masks.causal_parts import CausalParts, causal_parts
from regard.mechanisms.base import Mechanism
from regard.mechanisms.clean_tokens import MAX_NORM, fill_zeros, has_norm_below, is_false
from regard.mechanisms.linear_state import LinearState, any_visible
from regard.mechanisms.state import State, wrong_state_error
from regard.mechanisms.weights import weights_by_gradient
from regard.validation import check_mask, check_scale


@final
class ScanTerms(NamedTuple):
    """What is scanned, for each head of the queries: log_decay (batch, heads, keys) for one decay a token, (batch,
    heads, keys, head_dim) for one a channel, None without decay; beta (batch, heads, keys), None without the delta
    rule.
    """

    query: Float[Tensor, "batch heads queries head_dim"]
    key: Float[Tensor, "batch heads keys head_dim"]
    value: Float[Tensor, "batch heads keys value_dim"]
    log_decay: Tensor | None = None
    beta: Tensor | None = None


@final
class _CleanTokens(NamedTuple):
    """Finite tokens and extra inputs of keys; those that are left out, hidden or not finite, are 0."""

    query: Float[Tensor, "batch heads queries head_dim"]
    key: Float[Tensor, "batch heads keys head_dim"]
    value: Float[Tensor, "batch heads keys value_dim"]
    inputs: Mapping[str, Tensor]
    left_out: Bool[Tensor, "batch heads keys"]
    bad_query: Bool[Tensor, "batch heads queries"]
    bad_key: Bool[Tensor, "batch heads keys"]
    visible_keys: Bool[Tensor, "batch heads keys"]


@explain_arguments
class ScanMechanism(Mechanism):
    """Base class of mechanisms of the scan family, for subclasses that write ``make_terms``.

    ``scale`` is the factor of the queries. ``impl`` is "native" (the scan kernels, on a CPU), "reference" (plain
    torch), or "auto": native if it supports the call. ``weights`` with gradients are plain torch.
    """

    implementations: ClassVar[tuple[str, ...]] = impl_names("scan")
    weights_are: ClassVar[Literal["distribution", "non-negative", "signed"]] = "signed"

    def __init__(self, *, heads: int, head_dim: int, scale: float | None, impl: str) -> None:
        super().__init__(heads=heads, head_dim=head_dim)
        check_choice("impl", impl, ("auto", *self.implementations))
        check_scale(scale)
        self.impl = impl
        self.factor = head_dim**-0.5 if scale is None else float(scale)

    @property
    def scale(self) -> float:
        """Factor of the queries, by default 1/sqrt(head_dim)."""
        return self.factor

    @abstractmethod
    def make_terms(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
        value: Float[Tensor, "batch heads keys value_dim"],
        inputs: Mapping[str, Tensor],
    ) -> ScanTerms:
        """Compute what is scanned from finite tokens and extra inputs, all in float32 or float64.

        Hidden tokens are 0 here, and excluded afterwards, so what is computed for them has no effect.
        """

    @final
    def refuses(self, request: Request) -> str | None:
        """Refuse a bias, and masks other than a causal mask, a mask that hides keys from every query, or both."""
        if request.bias is not None:
            return "a bias is added to scores, and a state that is updated token by token has no scores"
        if causal_parts(request.mask, request.frame) is None:
            return (
                "all queries share one state, which each token updates for all later queries: "
                "a mask must be causal, hide keys from all queries, or both"
            )
        return None

    @final
    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output; half precision is computed in float32 and rounded once."""
        return self._attend(request, self.impl)

    @final
    def row_weights(self, request: Request, rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows keys"]:
        """Compute the weights of some queries; in plain torch if gradients are enabled.

        The scan kernels have no second derivatives.
        """
        impl = "reference" if torch.is_grad_enabled() else self.impl
        return weights_by_gradient(partial(self._attend, impl=impl), request, rows)

    def _attend(self, request: Request, impl: str) -> Float[Tensor, "batch heads queries value_dim"]:
        parts = causal_parts(request.mask, request.frame)
        assert parts is not None
        with disable_autocast(request.device):
            tokens = _clean_tokens(request, parts.visible_keys(request.frame, request.device))
            output, _ = self._scan(tokens, LinearState(), _last_key(parts, request.frame), impl)
            return output.to(request.query.dtype)

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
        for more new queries than keys.
        """
        if not isinstance(state, LinearState):
            raise wrong_state_error(state, LinearState, type(self).__name__)
        request = self.make_request(query, key, value, None, bias, inputs)
        state.check(request, self.head_dim, value.shape[3])
        known, frame = state.length, Frame(query.shape[2], state.length + key.shape[2])
        if mask is not None:
            check_mask(mask)
            mask.check(query.shape[0], self.heads, frame.queries, frame.keys)
        parts = causal_parts(mask, frame)
        if parts is None or (frame.queries > 0 and _last_key(parts, frame) < known):
            raise self.refusal_error(
                "earlier keys are already in the state, so each new query needs a new key, and a mask must be causal, "
                "hide new keys, or both",
                request,
            )
        shown = parts.visible_keys(frame, request.device)
        with disable_autocast(request.device):
            tokens = _clean_tokens(request, None if shown is None else shown[..., known:])
            output, matrix = self._scan(tokens, state, _last_key(parts, frame) - known, self.impl)
        return output.to(query.dtype), state.extended(key.shape[2], matrix, tokens.bad_key, tokens.visible_keys)

    def _scan(
        self, tokens: _CleanTokens, state: LinearState, high: int, impl: str
    ) -> tuple[Float[Tensor, "batch heads queries value_dim"], Float[Tensor, "batch heads head_dim value_dim"]]:
        """Compute the output, and the matrix after all keys; ``high`` is the last key visible to query 0."""
        terms = self.make_terms(tokens.query, tokens.key, tokens.value, tokens.inputs)
        queries, keys = terms.query.shape[2], terms.key.shape[2]
        first, before = min(max(-high, 0), queries), max(high, 0)  # query with a key; keys before that of a query
        rows = terms.query[:, :, first:]
        aligned = rows
        if rows.shape[2] != keys:
            aligned = torch.nn.functional.pad(rows, (0, 0, before, keys - before - rows.shape[2]))
        left_out, log_decay, beta = tokens.left_out, terms.log_decay, terms.beta
        if log_decay is not None and not is_false(left_out):
            log_decay = log_decay.masked_fill(left_out if log_decay.dim() == 3 else left_out[..., None], 0.0)
        if beta is not None and not is_false(left_out):
            beta = beta.masked_fill(left_out, 0.0)
        request = ScanRequest(aligned, terms.key, terms.value, log_decay, beta, state.sums, self.scale)
        output, matrix = select("scan", impl, request).compute(request)
        if rows.shape[2] != keys:
            output = output[:, :, before : before + rows.shape[2]]
        if first:
            output = torch.nn.functional.pad(output, (0, 0, first, 0))
        shown = any_visible(tokens.visible_keys, state.has_visible_key, queries, high)
        bad = any_visible(tokens.bad_key, state.has_nonfinite, queries, high) | tokens.bad_query
        bad = bad & shown
        if not is_false(~shown):
            # These rows are 0 already, but a NaN in their gradient must not reach the sums over a chunk.
            output = output.masked_fill(~shown[..., None], 0.0)
        return output if is_false(bad) else output.masked_fill(bad[..., None], torch.nan), matrix

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"heads={self.heads}, head_dim={self.head_dim}, scale={self.factor:.4g}, impl={self.impl!r}"


def _last_key(parts: CausalParts, frame: Frame) -> int:
    """The last key that query 0 may attend to; negative if there is none."""
    return frame.offset if parts.high is None else min(frame.offset, parts.high)


def _clean_tokens(request: Request, shown: Bool[Tensor, "#batch #heads keys"] | None) -> _CleanTokens:
    """Replace what is hidden or not finite by zeros, in the dtype of the sums, for each head of the queries."""
    dtype, group = accumulation_dtype(request.query.dtype), request.group
    query, key, value = (side.to(dtype) for side in (request.query, request.key, request.value))
    inputs = {name: one.to(dtype) for name, one in request.inputs.items()}
    bad_query = ~has_norm_below(query, MAX_NORM[dtype])
    bad_key = ~(has_norm_below(key, MAX_NORM[dtype]) & has_norm_below(value, MAX_NORM[dtype]))
    if group > 1:
        key, value, bad_key = (side.repeat_interleave(group, dim=1) for side in (key, value, bad_key))
    for one in inputs.values():
        bad_key = bad_key | ~has_norm_below(one, MAX_NORM[dtype])
    shown = torch.ones_like(bad_key) if shown is None else shown.expand_as(bad_key)
    left_out = ~shown | bad_key
    return _CleanTokens(
        query=fill_zeros(query, bad_query),
        key=fill_zeros(key, left_out),
        value=fill_zeros(value, left_out),
        inputs={name: fill_zeros(one, left_out) for name, one in inputs.items()},
        left_out=left_out,
        bad_query=bad_query,
        bad_key=bad_key & shown,
        visible_keys=shown,
    )
