"""Linear attention: a kernel feature map in place of the softmax, so that keys are summed once for all queries.

    o_i = phi(q_i)^T S_i / phi(q_i)^T z_i        S_i = sum_j phi(k_j) v_j^T, z_i = sum_j phi(k_j), phi(x) = elu(x) + 1

Katharopoulos et al. 2020, "Transformers are RNNs: fast autoregressive Transformers with linear attention", equations 4,
5 and 7. The sums run over the keys that query i may attend to: over all of them for every query, or causally over
j <= i (equations 8 to 12); then S and z are the state of a recurrent network (equations 16 to 20), the decoding state.
Time is n d^2 and memory n d; the causal form processes chunks of queries, with explicit pairs inside a chunk, and the
state before the chunk for all earlier keys.

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim), S (batch, heads, head_dim, value_dim).
Other masks, a bias of scores (there are no scores) and dropout of weights are not supported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.arguments import explain_arguments
from regard.contract import Frame
from regard.errors import DtypeError, ShapeError
from regard.kernels.autocast import disable_autocast
from regard.kernels.request import Bias, Request
from regard.kernels.results import accumulation_dtype
from regard.masks.base import Mask
from regard.masks.causal_parts import causal_parts
from regard.mechanisms.base import Mechanism
from regard.mechanisms.key_value_cache import take_rows
from regard.mechanisms.state import State, wrong_state_error
from regard.validation import check_mask

_CHUNK = 64
_MAX_INPUT = {torch.float32: 2.0**40, torch.float64: 2.0**300}
"""Tokens with larger elements are handled like non-finite ones: products of three such elements would overflow."""
_MIN_FEATURE = 2.0**-100
"""Lower bound of phi: if every feature of every key were 0, the quotient would be 0/0."""


@final
@dataclass(frozen=True, eq=False)
class LinearState(State):
    """Decoding state: S and z side by side (batch, heads, head_dim, value_dim + 1); whether any key so far was not
    finite, and whether any was visible (batch, heads each). The tensors are None before the first token.
    """

    length: int = 0
    sums: Tensor | None = None
    has_nonfinite: Tensor | None = None
    has_visible_key: Tensor | None = None

    def check(self, request: Request) -> None:
        """Raise ShapeError or DtypeError unless the tokens of a request fit the sums."""
        sizes = (*request.query.shape[:2], request.query.shape[3], request.value.shape[3] + 1)
        if self.sums is not None and tuple(self.sums.shape) != sizes:
            raise ShapeError(
                "new tokens do not fit the state",
                expected=f"batch, heads, head_dim and value_dim + 1 of {tuple(self.sums.shape)}",
                got=f"{sizes}",
                do="start from the empty state for another batch or model",
            )
        dtype = accumulation_dtype(request.query.dtype)
        if self.sums is not None and (self.sums.dtype != dtype or self.sums.device != request.device):
            raise DtypeError(
                "new tokens do not fit the state",
                expected=f"tokens that are summed in {self.sums.dtype} on {self.sums.device}",
                got=f"{request.query.dtype} on {request.device}",
                do="start from the empty state for another dtype or device",
            )

    def reordered(self, entries: Int[Tensor, " batch"]) -> LinearState:
        """Select batch entries by index, in that order. Raises OptionError for invalid indices."""
        sums, broken, shown = (
            None if part is None else take_rows(part, entries)
            for part in (self.sums, self.has_nonfinite, self.has_visible_key)
        )
        return LinearState(self.length, sums, broken, shown)


@final
class _PreparedTokens(NamedTuple):
    """phi of queries and keys, and values with a 1 appended, all finite; hidden keys are 0."""

    query: Float[Tensor, "batch heads queries head_dim"]
    key: Float[Tensor, "batch heads keys head_dim"]
    value: Float[Tensor, "batch heads keys value_and_one"]
    bad_query: Bool[Tensor, "batch heads queries"]
    bad_key: Bool[Tensor, "batch heads keys"]
    visible_keys: Bool[Tensor, "batch heads keys"]


@final
@explain_arguments
class Linear(Mechanism):
    """Linear attention: phi(q)^T sum phi(k) v^T / phi(q)^T sum phi(k), with phi(x) = elu(x) + 1."""

    def __init__(self, *, heads: int, head_dim: int) -> None:
        super().__init__(heads=heads, head_dim=head_dim)

    def refuses(self, request: Request) -> str | None:
        """Refuse a bias, and masks other than a causal mask, a mask that hides keys from every query, or both."""
        if request.bias is not None:
            return "a bias is added to scores, and linear attention has no scores"
        if causal_parts(request.mask, request.frame) is None:
            return "all queries share its sums, so a mask must be causal, hide keys from all queries, or both"
        return None

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output; half precision is computed in float32 and rounded once."""
        parts = causal_parts(request.mask, request.frame)
        assert parts is not None
        with disable_autocast(request.device):
            tokens = _prepare_tokens(request, parts.visible_keys(request.frame, request.device))
            return _compute_output(tokens, LinearState(), parts.high).to(request.query.dtype)

    def empty_state(self) -> LinearState:
        """Make the state before the first token, without sums."""
        return LinearState()

    def step(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        state: State,
        mask: Mask | None = None,
        *,
        bias: Bias | None = None,
    ) -> tuple[Tensor, LinearState]:
        """Compute the output for new queries and the next state, in time and memory independent of ``state.length``.

        ``mask`` is over the new queries and all keys. Its values for earlier keys are ignored: a key is included or
        hidden when it is summed. Raises RefusedError for a mask whose causal bound is before the first new key.
        """
        if not isinstance(state, LinearState):
            raise wrong_state_error(state, LinearState, type(self).__name__)
        request = self.make_request(query, key, value, None, bias)
        state.check(request)
        known, frame = state.length, Frame(query.shape[2], state.length + key.shape[2])
        if mask is not None:
            check_mask(mask)
            mask.check(query.shape[0], self.heads, frame.queries, frame.keys)
        parts = causal_parts(mask, frame)
        if parts is None or (parts.high is not None and parts.high < known):
            raise self.refusal_error(
                "earlier keys are already summed, so a mask must be causal, hide new keys, or both", request
            )
        shown = parts.visible_keys(frame, request.device)
        with disable_autocast(request.device):
            tokens = _prepare_tokens(request, None if shown is None else shown[..., known:])
            output = _compute_output(tokens, state, None if parts.high is None else parts.high - known)
            return output.to(query.dtype), _update_state(tokens, state)


def _prepare_tokens(request: Request, shown: Bool[Tensor, "#batch #heads keys"] | None) -> _PreparedTokens:
    """Compute phi and the values. phi of a query is divided by its largest element, which cancels in the quotient."""
    dtype, group = accumulation_dtype(request.query.dtype), request.group
    query = request.query.to(dtype)
    key, value = (side.to(dtype).repeat_interleave(group, dim=1) for side in (request.key, request.value))
    bad_query, bad_key = ~_is_moderate(query), ~(_is_moderate(key) & _is_moderate(value))
    shown = torch.ones_like(bad_key) if shown is None else shown.expand_as(bad_key)
    query = query.masked_fill(bad_query[..., None], 0.0)
    logarithms = torch.where(query > 0, query.clamp(min=0.0).log1p(), query)
    key = key.masked_fill(bad_key[..., None], 0.0)
    features = torch.where(key > 0, key + 1.0, key.clamp(max=0.0).exp()).clamp(min=_MIN_FEATURE)
    kept = (shown & ~bad_key)[..., None]
    value = torch.nn.functional.pad(value.masked_fill(~kept, 0.0), (0, 1), value=1.0)
    return _PreparedTokens(
        query=(logarithms - logarithms.detach().amax(-1, keepdim=True)).exp(),
        key=features.masked_fill(~kept, 0.0),
        value=value,
        bad_query=bad_query,
        bad_key=bad_key & shown,
        visible_keys=shown,
    )


def _is_moderate(tokens: Float[Tensor, "batch heads length size"]) -> Bool[Tensor, "batch heads length"]:
    """True for tokens that are finite, and small enough that sums of their products are finite."""
    return (tokens.abs() < _MAX_INPUT[tokens.dtype]).all(-1)


def _compute_output(
    tokens: _PreparedTokens, state: LinearState, high: int | None
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute the quotient; ``high`` is the last new key visible to query 0, None if all queries see all keys."""
    sums, broken, shown = _sum_all_keys(tokens, state) if high is None else _sum_causal_keys(tokens, state, high)
    # For a query without visible keys 0/0 is computed as 0/1, so that its gradients are 0 too.
    means = sums[..., :-1] / sums[..., -1:].masked_fill(~shown[..., None], 1.0)
    bad = (tokens.bad_query | broken) & shown
    return means.masked_fill(~shown[..., None], 0.0).masked_fill(bad[..., None], torch.nan)


_Sums: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""phi(q)^T S beside phi(q)^T z (batch, heads, queries, value_dim + 1); for each query whether any visible key is not
finite, and whether any key is visible (batch, heads, queries each)."""


def _sum_all_keys(tokens: _PreparedTokens, state: LinearState) -> _Sums:
    """Sum the visible keys, the same for every query."""
    after = _update_state(tokens, state)
    assert after.sums is not None
    assert after.has_nonfinite is not None
    assert after.has_visible_key is not None
    queries = tokens.query.shape[2]
    broken, shown = (
        flag[..., None].expand(*flag.shape, queries) for flag in (after.has_nonfinite, after.has_visible_key)
    )
    return tokens.query @ after.sums, broken, shown


def _update_state(tokens: _PreparedTokens, state: LinearState) -> LinearState:
    """Add these tokens to the state."""
    sums, broken, shown = tokens.key.mT @ tokens.value, tokens.bad_key.any(-1), tokens.visible_keys.any(-1)
    length = state.length + tokens.key.shape[2]
    if state.sums is None or state.has_nonfinite is None or state.has_visible_key is None:
        return LinearState(length, sums, broken, shown)
    return LinearState(length, state.sums + sums, state.has_nonfinite | broken, state.has_visible_key | shown)


def _sum_causal_keys(tokens: _PreparedTokens, state: LinearState, high: int) -> _Sums:
    """Sum keys up to i + high for query i: those before ``high`` are added to the state, the others one per query."""
    queries, first = tokens.query.shape[2], min(max(high, 0), tokens.key.shape[2])
    before = _update_state(
        tokens._replace(
            key=tokens.key[:, :, :first],
            value=tokens.value[:, :, :first],
            bad_key=tokens.bad_key[..., :first],
            visible_keys=tokens.visible_keys[..., :first],
        ),
        state,
    )
    assert before.sums is not None
    assert before.has_nonfinite is not None
    assert before.has_visible_key is not None

    def in_step(side: Tensor) -> Tensor:
        """Align each query with the last key that it may attend to, in chunks: (batch, heads, chunks, chunk, ...)."""
        side = side[:, :, first : queries + high] if queries + high > first else side[:, :, :0]
        front = min(max(-high, 0), queries)
        behind = -(-queries // _CHUNK) * _CHUNK - front - side.shape[2]
        ends = (0, 0) * (side.dim() - 3) + (front, behind)
        return torch.nn.functional.pad(side, ends).unflatten(2, (-1, _CHUNK))

    query = torch.nn.functional.pad(tokens.query, (0, 0, 0, -queries % _CHUNK)).unflatten(2, (-1, _CHUNK))
    key, value = in_step(tokens.key), in_step(tokens.value)
    totals = (key.mT @ value).cumsum(2)
    earlier = before.sums[:, :, None] + torch.nn.functional.pad(totals, (0, 0, 0, 0, 1, 0))[:, :, :-1]
    sums = (query @ key.mT).tril() @ value + query @ earlier
    broken, shown = (
        (in_step(flags).flatten(2, 3)[..., :queries].cumsum(-1) > 0) | known[..., None]
        for flags, known in ((tokens.bad_key, before.has_nonfinite), (tokens.visible_keys, before.has_visible_key))
    )
    return sums.flatten(2, 3)[:, :, :queries], broken, shown
