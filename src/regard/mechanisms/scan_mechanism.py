"""``ScanMechanism``: attention whose state is a matrix that decays and is updated token by token.

    S_t = D_t S_(t-1) + k_t u_t^T,    o_t = scale S_t^T q_t        D_t = diag(exp(log_decay_t)), between 0 and 1
    u_t = v_t, or with the delta rule beta_t (v_t - (D_t S_(t-1))^T k_t)

A subclass computes the decays, the rates beta, and what else it does to its tokens (``make_scan``); the causal form,
the decoding state and the promises follow. The scan kernels compute chunks of tokens at once, in time and memory linear
in the length; one token after the other, the same equations are the steps of decoding.

Later keys are hidden by the mechanism itself; ``LinearStateMechanism`` says which masks it supports. The state begins
again with each of several texts in a row. A token that is
hidden from every query, such as padding, neither updates the state nor lets it decay.

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim), S (batch, heads, head_dim, value_dim).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.arguments import explain_arguments
from regard.contract import Frame
from regard.kernels.compute_scan import compute_scan
from regard.kernels.reference.scan import ScanRequest
from regard.kernels.request import Request
from regard.kernels.results import accumulation_dtype
from regard.masks.causal_parts import CausalParts
from regard.mechanisms.clean_tokens import MAX_NORM, fill_nan, fill_zeros, has_norm_below, is_false
from regard.mechanisms.linear_state import LinearState, any_visible
from regard.mechanisms.linear_state_mechanism import LinearStateMechanism, NextState
from regard.mechanisms.steps import States
from regard.validation import check_scale


@final
class _CleanTokens(NamedTuple):
    """Finite tokens and extra inputs of keys; those that are left out, hidden or not finite, are 0."""

    query: Float[Tensor, "batch heads queries head_dim"]
    key: Float[Tensor, "batch heads keys head_dim"]
    value: Float[Tensor, "batch heads keys value_dim"]
    inputs: Mapping[str, Tensor]
    excluded: Bool[Tensor, "batch heads keys"]
    bad_query: Bool[Tensor, "batch heads queries"]
    bad_key: Bool[Tensor, "batch heads keys"]
    visible_keys: Bool[Tensor, "batch heads keys"]


@explain_arguments
class ScanMechanism(LinearStateMechanism):
    """Base class of mechanisms of the scan family, for subclasses that write ``make_scan``.

    ``scale`` is the factor of the queries; ``impl`` is ``LinearStateMechanism``'s.
    """

    traits = replace(LinearStateMechanism.traits, weights_are="signed", hides_later_keys=True)
    begins_again = True

    def __init__(self, *, heads: int, head_dim: int, scale: float | None, impl: str) -> None:
        super().__init__(heads=heads, head_dim=head_dim, impl=impl)
        check_scale(scale)
        self.factor = head_dim**-0.5 if scale is None else float(scale)

    @property
    def scale(self) -> float:
        """Factor of the queries, by default 1/sqrt(head_dim)."""
        return self.factor

    @abstractmethod
    def make_scan(
        self,
        query: Float[Tensor, "batch heads keys head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
        value: Float[Tensor, "batch heads keys value_dim"],
        inputs: Mapping[str, Tensor],
    ) -> ScanRequest:
        """Compute what is scanned from finite tokens and extra inputs, all in float32 or float64.

        Hidden tokens are 0 here, and excluded afterwards, so what is computed for them has no effect; so are queries
        where there is none for a key. State and scale are not set.
        """

    @final
    def state_size(self, value_dim: int) -> tuple[int, int]:
        """Return the rows and columns of S."""
        return self.head_dim, value_dim

    @final
    def last_key(self, parts: CausalParts, frame: Frame) -> int:
        """Return the last key that query 0 may attend to; without a causal mask, a query sees no later key either."""
        return frame.offset if parts.high is None else min(frame.offset, parts.high)

    @final
    def continue_from(
        self,
        state: LinearState,
        request: Request,
        visible_keys: Bool[Tensor, "#batch #heads keys"] | None,
        last_key: int | None,
        impl: str,
        starts: Bool[Tensor, "batch keys"] | None = None,
    ) -> tuple[Float[Tensor, "batch heads queries value_dim"], NextState]:
        """Scan the new tokens."""
        assert last_key is not None
        tokens = _clean_tokens(request, visible_keys)
        output, matrix = self._scan(tokens, state, last_key, impl, request.query.dtype, starts)
        return output, partial(state.extended, request.frame.keys, matrix, tokens.bad_key, tokens.visible_keys)

    @final
    def make_states(
        self,
        request: Request,
        visible_keys: Bool[Tensor, "#batch #heads keys"] | None,
        starts: Bool[Tensor, "batch keys"] | None = None,
    ) -> States:
        """Return what is scanned, with the factor that ``make_scan`` gives a value."""
        tokens = _clean_tokens(request, visible_keys)
        scan = self.make_scan(tokens.query, tokens.key, torch.ones_like(tokens.value[..., :1]), tokens.inputs)
        hidden = tokens.excluded[..., None]
        decay = None if scan.log_decay is None else scan.log_decay.masked_fill(hidden, 0.0).exp()
        if starts is not None:
            decay = torch.ones_like(scan.key[..., :1]) if decay is None else decay
            decay = decay.masked_fill(starts[:, None, :, None], 0.0)
        return States(
            query=scan.query,
            key=scan.key,
            value=tokens.value,
            scale=self.scale,
            decay=decay,
            beta=None if scan.beta is None else scan.beta.masked_fill(hidden, 0.0),
            gain=None if bool((scan.value == 1).all()) else scan.value,
        )

    def _scan(
        self,
        tokens: _CleanTokens,
        state: LinearState,
        high: int,
        impl: str,
        dtype: torch.dtype,
        starts: Bool[Tensor, "batch keys"] | None,
    ) -> tuple[Float[Tensor, "batch heads queries value_dim"], Float[Tensor, "batch heads head_dim value_dim"]]:
        """Compute the output, and the matrix after all keys; ``high`` is the last key visible to query 0.

        ``dtype`` is that of the caller's tokens.
        """
        queries, keys = tokens.query.shape[2], tokens.key.shape[2]
        first, before = (
            min(max(-high, 0), queries),
            max(high, 0),
        )  # first query with a key; number of keys before its key
        rows = tokens.query[:, :, first:]
        aligned = rows
        if rows.shape[2] != keys:
            aligned = torch.nn.functional.pad(rows, (0, 0, before, keys - before - rows.shape[2]))
        scan = self.make_scan(aligned, tokens.key, tokens.value, tokens.inputs)
        log_decay, beta = scan.log_decay, scan.beta
        is_clean = is_false(tokens.excluded)
        if not is_clean:
            log_decay, beta = (
                None if tensor is None else tensor.masked_fill(tokens.excluded[..., None], 0.0)
                for tensor in (log_decay, beta)
            )
        request = scan._replace(log_decay=log_decay, beta=beta, state=state.sums, scale=self.scale, starts=starts)
        output, matrix = compute_scan(impl, request, dtype)
        if rows.shape[2] != keys:
            output = output[:, :, before : before + rows.shape[2]]
        if first:
            output = torch.nn.functional.pad(output, (0, 0, first, 0))
        if is_clean and not first and is_false(tokens.bad_query) and not state.may_be_broken:
            return output, matrix  # every query sees a key, and all tokens are finite
        visible = any_visible(tokens.visible_keys, state.has_visible_key, queries, high, starts)
        bad = any_visible(tokens.bad_key, state.has_nonfinite, queries, high, starts) | tokens.bad_query
        # These rows are 0 already, but a NaN in their gradient must not reach the sums over a chunk.
        return fill_nan(fill_zeros(output, ~visible), bad & visible), matrix

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"heads={self.heads}, head_dim={self.head_dim}, scale={self.factor:.4g}, impl={self.impl!r}"


def _clean_tokens(request: Request, visible: Bool[Tensor, "#batch #heads keys"] | None) -> _CleanTokens:
    """Replace hidden and not finite numbers by zeros, in the dtype of the sums, for each head of the queries."""
    dtype, group = accumulation_dtype(request.query.dtype), request.group
    query, key, value = (side.to(dtype) for side in (request.query, request.key, request.value))
    inputs = {name: tensor.to(dtype) for name, tensor in request.inputs.items()}
    bad_query = ~has_norm_below(query, MAX_NORM[dtype])
    bad_key = ~(has_norm_below(key, MAX_NORM[dtype]) & has_norm_below(value, MAX_NORM[dtype]))
    if group > 1:
        key, value, bad_key = (side.repeat_interleave(group, dim=1) for side in (key, value, bad_key))
    for tensor in inputs.values():
        bad_key = bad_key | ~has_norm_below(tensor, MAX_NORM[dtype])
    visible = torch.ones_like(bad_key) if visible is None else visible.expand_as(bad_key)
    excluded = ~visible | bad_key
    return _CleanTokens(
        query=fill_zeros(query, bad_query),
        key=fill_zeros(key, excluded),
        value=fill_zeros(value, excluded),
        inputs={name: fill_zeros(tensor, excluded) for name, tensor in inputs.items()},
        excluded=excluded,
        bad_query=bad_query,
        bad_key=bad_key & visible,
        visible_keys=visible,
    )
