"""Attention that a module writes by hand: a softmax of products of queries and keys, multiplied by values.

    scores   = a product of two tensors, neither of them weights of the model
    softmax  of a tensor that was computed from scores, along its last axis
    output   = a product of what was computed from the softmax, such as after dropout, with values

Each product, softmax and step between them is an operation that torch calls. What a tensor is, is kept for its memory,
so that views have it too. What happens to the scores on the way to the softmax (scale, mask, bias, another product by
position) is not followed: if the scores are found to be scaled dot products with a mask, the weights are computed again
on request (``recomputed_call``); else the weights (.., queries, keys) are kept as the model computed them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_iter

from regard.recording.calls import LayerCall
from regard.recording.recomputed_call import make_recomputed_call
from regard.recording.recorded_call import make_kept_call

_aten = torch.ops.aten
_PRODUCTS = {_aten.bmm.default: 0, _aten.mm.default: 0, _aten.baddbmm.default: 1}
"""Operations that multiply matrices, with the place of the left one among the arguments."""
_CAST = _aten._to_copy.default
_SOFTMAXES = (_aten._softmax.default, _aten._safe_softmax.default)
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads", "nheads", "nhead", "num_head")
"""Names by which modules know their number of heads."""

_MAX_ENTRIES = 1024
"""Number of tensors in memory from which on those that were freed are forgotten."""


@final
@dataclass(frozen=True, eq=False)
class _Parameter:
    """Weights of the model, or their cast to another dtype. Queries computed from weights are queries."""


@final
@dataclass(frozen=True, eq=False)
class _Scores:
    """Products of queries (.., queries, head_dim) and keys (.., keys, head_dim)."""

    query: Tensor
    key: Tensor


@final
@dataclass(eq=False)
class _Softmax:
    """A softmax of scores in a layer, and whether its result was multiplied by values."""

    layer: str
    is_used: bool = False


@final
@dataclass(eq=False)
class _Weights:
    """The result of a softmax, (.., queries, keys), its scores, and the product that they were computed from.

    As soon as they are described by a call, its mechanism has them, and they are let go.
    """

    shape: torch.Size
    values: Tensor | None
    final_scores: Tensor | None
    scores: _Scores
    softmax: _Softmax
    call: LayerCall | None = None

    def read(self) -> Tensor:
        """The weights, computed again if they were let go."""
        if self.values is not None:
            return self.values
        assert self.call is not None
        return self.call.weights().reshape(self.shape)

    def has_address_of(self, tensor: Tensor) -> bool:
        """Whether the weights are kept and share memory with a tensor."""
        return self.values is not None and _address(self.values) == _address(tensor)

    def let_go(self, call: LayerCall) -> None:
        """Keep the call in place of weights and scores."""
        self.values, self.final_scores, self.call = None, None, call


_Origin: TypeAlias = _Parameter | _Scores | _Weights


@final
class WrittenAttention:
    """Follows the operations of a model from scores to outputs. ``parameters`` are its weights."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._known: dict[int, tuple[StorageWeakRef, _Origin]] = {}
        self._softmaxes: list[_Softmax] = []
        for parameter in parameters:
            self._set(parameter, _Parameter())

    @property
    def not_understood(self) -> list[str]:
        """The layers with a softmax of scores that was not seen to be multiplied by values."""
        return list(dict.fromkeys(softmax.layer for softmax in self._softmaxes if not softmax.is_used))

    def prepare(self, operation: Any, arguments: Sequence[Any]) -> None:
        """Copy weights that an operation is about to change in place, such as dropout."""
        if arguments and isinstance(arguments[0], Tensor) and _changes_arguments(operation):
            changed = self._get(arguments[0])
            if isinstance(changed, _Weights) and changed.has_address_of(arguments[0]):
                changed.values = changed.read().clone()

    def follow(
        self, operation: Any, arguments: Sequence[Any], output: Any, running: Sequence[nn.Module], layer: str
    ) -> LayerCall | None:
        """Follow an operation that a layer has called; returns the call if it multiplies weights and values."""
        place = _PRODUCTS.get(operation)
        if place is not None:
            return self._follow_product(arguments[place], arguments[place + 1], output, running)
        if operation in _SOFTMAXES:
            self._follow_softmax(arguments[0], arguments[1], output, layer)
            return None
        known = [self._get(tensor) for tensor in tree_iter(arguments) if isinstance(tensor, Tensor)]
        origin: _Origin | None = next((found for found in known if isinstance(found, _Scores | _Weights)), None)
        if origin is None and operation is _CAST:
            origin = known[0]
        if origin is not None:
            for tensor in tree_iter(output):
                if isinstance(tensor, Tensor):
                    self._set(tensor, origin)
        return None

    def _follow_product(
        self, left: Tensor, right: Tensor, output: Tensor, running: Sequence[nn.Module]
    ) -> LayerCall | None:
        origins = self._get(left), self._get(right)
        mixed = _find_mixed_heads(origins, (left, right), running)
        if mixed is not None:
            self._set(output, mixed)
            return None
        for weights, product, values in ((origins[0], left, right), (origins[1], right.mT, left.mT)):
            if not isinstance(weights, _Weights):
                continue
            used = _match_weights(product, weights.read())
            if used is not None:
                is_softmax = _has_factor(product.reshape(used.shape), used)
                if not is_softmax:  # such as after a gate, or mixed across heads
                    used = product.detach().clone().reshape(used.shape)
                scores = weights.final_scores if is_softmax and used.shape == weights.shape else None
                call = _make_call(used, weights.scores, scores, values, running)
                weights.softmax.is_used |= call is not None
                if call is not None and scores is not None:
                    weights.let_go(call)
                return call
        if not any(isinstance(origin, _Parameter | _Weights) for origin in origins):
            self._set(output, _Scores(left.detach(), right.mT.detach()))
        return None

    def _follow_softmax(self, scores: Tensor, dim: int, output: Tensor, layer: str) -> None:
        origin = self._get(scores)
        if not isinstance(origin, _Scores):
            return
        softmax = _Softmax(layer)
        self._softmaxes.append(softmax)
        if dim in (-1, scores.dim() - 1):
            self._set(output, _Weights(output.shape, output.detach(), scores.detach(), origin, softmax))

    def _get(self, tensor: Tensor) -> _Origin | None:
        found = self._known.get(_address(tensor))
        return None if found is None or found[0].expired() else found[1]

    def _set(self, tensor: Tensor, origin: _Origin) -> None:
        address = _address(tensor)
        if address == 0:
            return
        if len(self._known) >= _MAX_ENTRIES:
            self._known = {key: entry for key, entry in self._known.items() if not entry[0].expired()}
        self._known[address] = StorageWeakRef(tensor.untyped_storage()), origin


def _find_mixed_heads(
    origins: tuple[_Origin | None, _Origin | None], factors: tuple[Tensor, Tensor], running: Sequence[nn.Module]
) -> _Origin | None:
    """The scores or weights that a product mixes across heads by a square matrix of the model; None if it does not.

    Talking heads (Shazeer et al. 2020), as in CaiT: (.., heads) @ (heads, heads), or (heads, heads) @ (heads, ..).
    """
    sides = zip(origins, origins[::-1], factors, factors[::-1], (-1, -2), strict=True)
    for origin, other, tokens, matrix, axis in sides:
        heads = tokens.shape[axis]
        if (
            isinstance(origin, _Scores | _Weights)
            and isinstance(other, _Parameter)
            and matrix.shape[-2:] == (heads, heads)
            and matrix.numel() == heads**2
            and heads in _head_counts(running)
        ):
            return origin
    return None


def _changes_arguments(operation: Any) -> bool:
    return isinstance(operation, torch._ops.OpOverload) and operation._schema.is_mutable


def _address(tensor: Tensor) -> int:
    """A number of the memory of a tensor, shared by its views; 0 for tensors without memory of their own."""
    if tensor.is_nested or tensor.layout != torch.strided or not torch._C._has_storage(tensor):
        return 0
    return tensor.untyped_storage()._cdata


def _match_weights(product: Tensor, weights: Tensor) -> Tensor | None:
    """The weights on the left side of a product, before dropout and in their own shape; None if it has others.

    They are all of them, or those without the first or the last columns, which belong to sinks. The transposed weights
    have columns that are sums over queries, which differ from 1.
    """
    keys, computed = product.shape[-1], weights.shape[-1]
    if product.numel() == 0 or keys > computed or product.numel() * computed != weights.numel() * keys:
        return None
    if keys < computed:
        parts = weights[..., :keys], weights[..., -keys:]
        return next((part for part in parts if _has_factor(product.reshape(part.shape), part)), None)
    if product.shape[-1] != product.shape[-2]:
        return weights
    of_rows, of_columns = (product.float().nan_to_num().sum(axis) for axis in (-1, -2))
    if bool((of_rows - 1).abs().mean() <= (of_columns - 1).abs().mean()):
        return weights
    # Weights that were mixed across heads have sums that are equal in a head, but not 1.
    spreads = [(sums - sums.mean(-1, keepdim=True)).abs().mean() for sums in (of_rows, of_columns)]
    return weights if bool(spreads[0] < spreads[1]) else None


def _has_factor(product: Tensor, weights: Tensor) -> bool:
    """Whether a tensor is the weights times one number, as after dropout, or 0."""
    if product.dtype == weights.dtype and product.data_ptr() == weights.data_ptr():
        return True
    kept = (product != 0).flatten()
    scaled, plain = product.flatten()[kept].float().nan_to_num(), weights.flatten()[kept].float().nan_to_num()
    if not scaled.numel():
        return True
    largest = plain.argmax()
    expected = scaled[largest] / plain[largest].clamp(min=1e-30) * plain
    return bool(((scaled - expected).abs() <= 0.02 * expected.abs() + 1e-5).all())


def _make_call(
    weights: Tensor, origin: _Scores, scores: Tensor | None, values: Tensor, running: Sequence[nn.Module]
) -> LayerCall | None:
    """The call of a layer, without a name; None if queries, keys and values do not fit its weights.

    The weights are kept only if they cannot be computed again from queries and keys. ``scores`` are those of which they
    are the softmax; None if they are no softmax of all scores.
    """
    batch, heads = _batch_and_heads(weights, running)
    queries, keys = weights.shape[-2:]
    query, key = origin.query, origin.key
    if query.shape[-2] != queries and key.shape[-2] == queries:
        query, key = key, query
    of_queries = _to_heads(query, batch, queries)
    of_keys, of_values = _to_heads(key, batch, keys), _to_heads(values.detach(), batch, keys)
    if of_queries is None or of_keys is None or of_values is None or of_queries.shape[1] != heads:
        return None
    groups = max(of_keys.shape[1], of_values.shape[1])
    if heads % groups or groups % of_keys.shape[1] or groups % of_values.shape[1]:
        return None
    of_keys, of_values = (
        side.repeat_interleave(groups // side.shape[1], dim=1) if side.shape[1] < groups else side
        for side in (of_keys, of_values)
    )
    kept = weights.reshape(batch, heads, queries, keys)
    if scores is None:
        return make_kept_call(of_queries, of_keys, of_values, kept, max_score=None)
    scores = scores.reshape(kept.shape)
    call = make_recomputed_call(of_queries, of_keys, of_values, scores, kept)
    return call or make_kept_call(of_queries, of_keys, of_values, kept, max_score=scores.amax(-1))


def _batch_and_heads(weights: Tensor, running: Sequence[nn.Module]) -> tuple[int, int]:
    """The sizes of batch and heads: from the axes of the weights, and from what the running modules say of heads."""
    leading = weights.shape[:-2]
    total = math.prod(leading)
    head_counts = _head_counts(running)
    if len(leading) == 2:
        return leading[0], leading[1]
    for axes in range(1, len(leading) + 1):  # windows before the heads, or groups of queries beside them
        heads = math.prod(leading[-axes:])
        if heads in head_counts:
            return total // heads, heads
    if len(leading) == 1:
        heads = next((size for size in head_counts if isinstance(size, int) and size > 0 and total % size == 0), 1)
        return total // heads, heads
    return (total // leading[-1], leading[-1]) if leading else (1, 1)


def _head_counts(running: Sequence[nn.Module]) -> set[Any]:
    """Numbers of heads that the running modules state."""
    return {getattr(module, name, None) for module in running for name in _HEADS}


def _to_heads(tokens: Tensor, batch: int, length: int) -> Tensor | None:
    """Tokens (.., length, size) as (batch, heads, length, size); None if they do not fit."""
    heads, rest = divmod(tokens.numel(), max(batch * length * tokens.shape[-1], 1))
    return None if rest or not heads else tokens.reshape(batch, heads, length, tokens.shape[-1])
