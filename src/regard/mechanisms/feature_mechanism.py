"""``FeatureMechanism``: attention whose weights are products of features of the query and of the key.

    o_i = sum_j s_ij v_j / sum_j s_ij         s_ij = phi(q_i) . phi(k_j)

A subclass says which features (``feature_map``); bidirectional and causal sums, the decoding state and the promises
follow (``feature_sums``). ``LinearStateMechanism`` says which masks.

A whole text on a CPU is computed by a kernel (``implementations.feature_attention``) if all queries see all keys, or
each those up to its own. All other calls, such as steps of decoding, are sums of blocks here.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from functools import partial
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.contract import Frame
from regard.kernels.implementations.feature_attention import attend_by_features, refuses_features
from regard.kernels.reference.feature_attention import FeatureMap, FeatureRequest
from regard.kernels.request import Request
from regard.kernels.results import accumulation_dtype
from regard.kernels.tracing import any_requires_grad
from regard.masks.causal_parts import CausalParts
from regard.mechanisms.clean_tokens import MAX_NORM, fill_nan, fill_tokens, fill_zeros, has_norm_below
from regard.mechanisms.feature_sums import HIDDEN_LOG_WEIGHT, KeyFeatures, ScaledSums, add_keys, sum_prefixes
from regard.mechanisms.linear_state import LinearState, any_visible
from regard.mechanisms.linear_state_mechanism import LinearStateMechanism, NextState
from regard.mechanisms.steps import Factors, States
from regard.tensors import is_traced

_BLOCK = 2**20
"""Features of queries or keys that are held at once, about: they are computed and summed while they are in a cache."""
_CHUNK = 64
"""Tokens that a scan computes at once; blocks are multiples of it."""


@final
class _CleanTokens(NamedTuple):
    """Finite tokens, values with a 1 appended, and the map to features. The values of keys that are left out, hidden or
    not finite, are 0, and so is the number appended to them.
    """

    features: FeatureMap
    query: Float[Tensor, "batch heads queries head_dim"]
    key: Float[Tensor, "batch key_heads keys head_dim"]
    value: Float[Tensor, "batch heads keys value_and_one"]
    excluded: Bool[Tensor, "batch heads keys"]
    bad_query: Bool[Tensor, "batch heads queries"]
    bad_key: Bool[Tensor, "batch heads keys"]
    visible_keys: Bool[Tensor, "batch heads keys"]

    @property
    def of_keys(self) -> tuple[Tensor, Tensor, Tensor]:
        """The summed tensors: key, value and excluded."""
        return self.key, self.value, self.excluded


class FeatureMechanism(LinearStateMechanism):
    """Attention by feature maps, for subclasses that write ``feature_map`` and ``num_features``.

    ``impl`` is ``LinearStateMechanism``'s, also where all queries see all keys.
    """

    traits = replace(LinearStateMechanism.traits, takes_rotation=False)
    begins_again = True
    sums_ahead = True

    @property
    @abstractmethod
    def num_features(self) -> int:
        """The number of features of a token."""

    @abstractmethod
    def feature_map(self, dtype: torch.dtype) -> FeatureMap:
        """Return the map of tokens to features in ``dtype``, float32 or float64."""

    @final
    def weight_factors(self, request: Request) -> Factors:
        """Return the features of queries and keys, those of a key times its weight."""
        dtype = accumulation_dtype(request.query.dtype)
        feature_map = self.feature_map(dtype)
        features, log_weight = feature_map.map_keys(request.key.to(dtype))
        features = features + feature_map.added_floor
        if log_weight is not None:
            features = features * (log_weight - log_weight.amax(-1, keepdim=True)).exp()[..., None]
        of_key = features.repeat_interleave(request.group, dim=1)
        return Factors("features", feature_map.map_queries(request.query.to(dtype)), of_key, is_divided=True)

    @final
    def make_states(
        self,
        request: Request,
        visible_keys: Bool[Tensor, "#batch #heads keys"] | None,
        starts: Bool[Tensor, "batch keys"] | None = None,
    ) -> States:
        """Return the features of ``weight_factors``, and values with a 1 appended: the sums of all earlier tokens."""
        tokens, factors = self._clean_tokens(request, visible_keys), self.weight_factors(request)
        key = fill_zeros(factors.of_key, tokens.excluded)
        decay = None
        if starts is not None:
            decay = torch.ones_like(key[..., :1]).masked_fill(starts[:, None, :, None], 0.0)
        return States(factors.of_query, key, tokens.value, decay=decay, is_divided=True)

    @final
    def state_size(self, value_dim: int) -> tuple[int, int]:
        """Return the rows and columns of the sums: the last column sums the weights."""
        return self.num_features, value_dim + 1

    @final
    def last_key(self, parts: CausalParts, frame: Frame) -> int | None:
        """Return the causal bound of a mask, if it has one."""
        del frame
        return parts.high

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
        """Sum the new keys that a query sees; the next state adds those that none sees yet."""
        whole = None if starts is not None else self._request_of_whole_text(state, request, visible_keys, last_key)
        if impl not in ("reference", "fla") and whole is not None and refuses_features(whole) is None:
            output, *of_keys = attend_by_features(whole)
            if any_requires_grad(*whole.tensors):  # the kernel's sums have no gradients
                return output, partial(self._first_state, request, visible_keys)
            return output, partial(_state_of_sums, request, *of_keys, weighs_keys=whole.kind == "exponential")
        tokens = self._clean_tokens(request, visible_keys)
        output, sums, summed = self._compute_output(tokens, state, last_key, impl, starts)
        return output, partial(self._next_state, state, tokens, sums, summed)

    def _request_of_whole_text(
        self,
        state: LinearState,
        request: Request,
        visible_keys: Bool[Tensor, "#batch #heads keys"] | None,
        last_key: int | None,
    ) -> FeatureRequest | None:
        """Return the request of a call from the empty state in which all queries see all keys, or each those up to its
        own; None for other calls.
        """
        frame = request.frame
        causal = last_key is not None
        if state.sums is not None or (causal and not (last_key == 0 and frame.queries == frame.keys)):
            return None
        hidden = None
        if visible_keys is not None:
            hidden = (~visible_keys).expand(request.query.shape[0], -1, frame.keys)[:, :, None]
        dtype = accumulation_dtype(request.query.dtype)
        features = self.feature_map(dtype)
        return FeatureRequest(
            request.query,
            request.key,
            request.value,
            features.projection,
            hidden,
            *features.numbers,
            MAX_NORM[dtype],
            causal,
        )

    def _first_state(self, request: Request, visible_keys: Bool[Tensor, "#batch #heads keys"] | None) -> LinearState:
        """Sum all keys, with gradients."""
        tokens, empty = self._clean_tokens(request, visible_keys), LinearState()
        return self._next_state(empty, tokens, self._start_sums(tokens, empty), 0)

    def _next_state(self, state: LinearState, tokens: _CleanTokens, sums: ScaledSums, summed: int) -> LinearState:
        """Add the keys that are not yet summed."""
        keys = tokens.key.shape[2]
        sums = self._add_keys(tokens, sums, summed, keys)
        return state.extended(keys, sums.sums, tokens.bad_key, tokens.visible_keys, sums.log_scale)

    def _compute_output(
        self,
        tokens: _CleanTokens,
        state: LinearState,
        high: int | None,
        impl: str,
        starts: Bool[Tensor, "batch keys"] | None = None,
    ) -> tuple[Float[Tensor, "batch heads queries value_dim"], ScaledSums, int]:
        """Compute the output, and the sums after the keys that were summed for it, with their number.

        ``high`` is the last new key visible to query 0, None if all queries see all keys.
        """
        queries, keys, sums = tokens.query.shape[2], tokens.key.shape[2], self._start_sums(tokens, state)
        summed = first = keys if high is None else min(max(high, 0), keys)
        sums = self._add_keys(tokens, sums, 0, first)
        aligned = tokens
        if high is not None:
            summed = max(first, min(queries + high, keys))
            aligned = _align_keys(tokens, first, high)
        visible = any_visible(tokens.visible_keys, state.has_visible_key, queries, high, starts)
        bad = any_visible(tokens.bad_key, state.has_nonfinite, queries, high, starts) | tokens.bad_query
        # Split, since the gradient of a slice is as large as the whole: one for each block would be quadratic.
        sizes, parts = self._block_sizes(tokens, queries), []
        blocks = (tokens.query, visible, bad) if high is None else (tokens.query, visible, bad, *aligned.of_keys)
        begins = [None] * len(sizes) if starts is None else starts.split(sizes, dim=1)
        of_blocks = zip(*(side.split(sizes, dim=2) for side in blocks), strict=True)
        for (query, own_shown, own_bad, *of_keys), begin in zip(of_blocks, begins, strict=True):
            of_query = tokens.features.map_queries(query)
            if high is None:
                products = of_query @ sums.sums
            else:
                products, sums = sum_prefixes(of_query, _map_keys(tokens.features, *of_keys), sums, impl, begin)
            parts.append(_divide(products, own_shown, own_bad))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2), sums, summed

    def _start_sums(self, tokens: _CleanTokens, state: LinearState) -> ScaledSums:
        """Return the sums of a state, or zeros."""
        if state.sums is not None:
            return ScaledSums(state.sums, state.log_scale)
        batch, heads, _, size = tokens.value.shape
        scale = tokens.value.new_full((batch, heads), HIDDEN_LOG_WEIGHT) if tokens.features.weighs_keys else None
        return ScaledSums(tokens.value.new_zeros(batch, heads, self.num_features, size), scale)

    def _add_keys(self, tokens: _CleanTokens, sums: ScaledSums, first: int, last: int) -> ScaledSums:
        """Add the keys from ``first`` to before ``last``."""
        if first == last:  # ONNX Runtime leaves a product over no keys unwritten
            return sums
        sizes = self._block_sizes(tokens, last - first)
        sides = (side[:, :, first:last].split(sizes, dim=2) for side in tokens.of_keys)
        for of_keys in zip(*sides, strict=True):
            sums = add_keys(_map_keys(tokens.features, *of_keys), sums)
        return sums

    def _clean_tokens(self, request: Request, visible: Bool[Tensor, "#batch #heads keys"] | None) -> _CleanTokens:
        """Replace numbers that are hidden or not finite by zeros, in the dtype of the sums."""
        dtype, group = accumulation_dtype(request.query.dtype), request.group
        query, key, value = (side.to(dtype) for side in (request.query, request.key, request.value))
        good_query, good_key, good_value = (has_norm_below(side, MAX_NORM[dtype]) for side in (query, key, value))
        bad_query, bad_key = ~good_query, ~(good_key & good_value)
        key = fill_zeros(key, bad_key)
        if group > 1:
            value, bad_key = value.repeat_interleave(group, dim=1), bad_key.repeat_interleave(group, dim=1)
        visible = torch.ones_like(bad_key) if visible is None else visible.expand_as(bad_key)
        excluded = ~visible | bad_key
        value = torch.cat([fill_zeros(value, excluded), (~excluded)[..., None].to(dtype)], dim=-1)
        return _CleanTokens(
            features=self.feature_map(dtype),
            query=fill_zeros(query, bad_query),
            key=key,
            value=value,
            excluded=excluded,
            bad_query=bad_query,
            bad_key=bad_key & visible,
            visible_keys=visible,
        )

    def _block_sizes(self, tokens: _CleanTokens, length: int) -> list[int]:
        """Split tokens into blocks whose features fit into a cache; one block while torch traces."""
        size = max(_CHUNK, _BLOCK // max(1, tokens.query.shape[:2].numel() * self.num_features) // _CHUNK * _CHUNK)
        if is_traced() or length <= size:
            return [length]
        return [size] * (length // size) + ([length % size] if length % size else [])


def _map_keys(
    feature_map: FeatureMap,
    key: Float[Tensor, "batch key_heads keys head_dim"],
    value: Float[Tensor, "batch heads keys value_and_one"],
    excluded: Bool[Tensor, "batch heads keys"],
) -> KeyFeatures:
    """Compute the features of some keys, for each head of the queries."""
    group = value.shape[1] // key.shape[1]
    features, log_weight = feature_map.map_keys(key)
    if group > 1:
        features = features.repeat_interleave(group, dim=1)
    if log_weight is not None:
        log_weight = log_weight.repeat_interleave(group, dim=1) if group > 1 else log_weight
        log_weight = log_weight.masked_fill(excluded, HIDDEN_LOG_WEIGHT)
    return KeyFeatures(features, value, log_weight, feature_map.added_floor)


def _state_of_sums(
    request: Request, sums: Tensor, log_scale: Tensor, flags: Tensor, *, weighs_keys: bool
) -> LinearState:
    """Return the state after all keys of a request, from the sums of the kernel, for each head of the queries."""
    group = request.query.shape[1] // sums.shape[1]
    if group > 1:
        sums, log_scale, flags = (part.repeat_interleave(group, dim=1) for part in (sums, log_scale, flags))
    has_nonfinite, has_visible_key = flags[..., 0], flags[..., 1]
    return LinearState(request.frame.keys, sums, has_nonfinite, has_visible_key, log_scale if weighs_keys else None)


def _align_keys(tokens: _CleanTokens, first: int, high: int) -> _CleanTokens:
    """Align each query with the last key that it may attend to, unless that is before ``first``."""
    queries = tokens.query.shape[2]

    def in_step(side: Tensor, fill: float = 0.0) -> Tensor:
        side = side[:, :, first : queries + high] if queries + high > first else side[:, :, :0]
        front = min(max(-high, 0), queries)
        behind = queries - front - side.shape[2]
        return torch.nn.functional.pad(side, (0, 0) * (side.dim() - 3) + (front, behind), value=fill)

    excluded = in_step(tokens.excluded, True)
    return tokens._replace(key=in_step(tokens.key), value=in_step(tokens.value), excluded=excluded)


def _divide(
    products: Float[Tensor, "batch heads queries value_and_one"],
    visible: Bool[Tensor, "batch heads queries"],
    bad: Bool[Tensor, "batch heads queries"],
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute the quotients; 0 for queries without visible keys, NaN where a visible token is not finite."""
    means, total = products[..., :-1], products[..., -1:]
    # A query for which no key was summed, since each is hidden or not finite, has the quotient 0/0. It is computed as
    # 0/1, like all queries whose output is no quotient, so that they give all tokens gradients of 0.
    undefined = bad | ~visible
    quotients = fill_zeros(means, undefined) / fill_tokens(total, undefined, 1.0)
    return fill_nan(quotients, bad & visible)
