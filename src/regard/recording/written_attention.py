"""Attention that a module writes by hand: a softmax of products of queries and keys, multiplied by values.

    scores   = a product of two tensors, neither of them weights of the model; or, of additive attention (Bahdanau et
               al. 2015) and of pooling by a learned vector, a product with one column of weights
    weights  = a softmax of what was computed from scores; or what was computed from scores otherwise, if it is not
               below 0 and its rows sum to 1, such as exponentials divided by their sum
    output   = a product of what was computed from the weights, such as after dropout, with values, over the axis along
               which the weights sum to 1; or their products, element by element, summed along it

Each product, softmax and step between them is an operation that torch calls. What a tensor is, is kept for its memory,
so that views have it too. What happens to the scores on the way to the softmax (scale, mask, bias, another product by
position) is not followed: if the scores are found to be scaled dot products with a mask, the weights are computed again
on request (``recomputed_call``); else the weights (.., queries, keys) are kept as the model computed them. Scores of
one column have no queries and keys: in their place the call has NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_iter

from regard.recording.calls import LayerCall
from regard.recording.weight_layout import find_weights, has_factor
from regard.recording.written_call import head_counts, make_written_call

_aten = torch.ops.aten
_PRODUCTS = {_aten.bmm.default: 0, _aten.mm.default: 0, _aten.baddbmm.default: 1}
"""Operations that multiply matrices, with the place of the left one among the arguments."""
_LINEAR_MAPS = {**_PRODUCTS, _aten.addmm.default: 1, _aten.mv.default: 0}
"""The same, and those that may multiply by one column of weights."""
_CAST, _MULTIPLY, _SUM = _aten._to_copy.default, _aten.mul.Tensor, _aten.sum.dim_IntList
_SOFTMAXES = (_aten._softmax.default, _aten._safe_softmax.default)
_MAX_ENTRIES = 1024
"""Number of tensors in memory from which on those that were freed are forgotten."""
_SUM_TOLERANCE = 1e-3
"""How far the sum of weights in float32 may be from 1."""


@final
@dataclass(frozen=True, eq=False)
class _Parameter:
    """Weights of the model, or their cast to another dtype. Queries computed from weights are queries."""


@final
@dataclass(frozen=True, eq=False)
class _Scores:
    """Products of queries (.., queries, head_dim) and keys (.., keys, head_dim), or what was computed from them.

    ``shape`` is that of the tensor before it was viewed otherwise.
    """

    query: Tensor
    key: Tensor
    shape: torch.Size


@final
@dataclass(frozen=True, eq=False)
class _Energies:
    """A product with one column of weights, or what was computed from it: a score of each token or pair of tokens."""


@final
@dataclass(eq=False)
class _Softmax:
    """A softmax of scores in a layer, and whether its result was multiplied by values."""

    layer: str
    is_used: bool = False


@final
@dataclass(eq=False)
class _Weights:
    """The result of a softmax, (.., keys), its scores, and the product that they were computed from, if of two tensors.

    ``is_order_known`` says that the softmax was along the last axis: then the left factor of the scores was that of the
    queries. As soon as they are described by a call, its mechanism has them, and they are let go.
    """

    shape: torch.Size
    values: Tensor | None
    final_scores: Tensor | None
    scores: _Scores | None
    softmax: _Softmax
    is_order_known: bool
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

    def let_go(self, call: LayerCall, shape: torch.Size) -> None:
        """Keep the call in place of weights and scores; its weights have this shape."""
        self.values, self.final_scores, self.call = None, None, call
        self.shape = shape


@final
@dataclass(frozen=True, eq=False)
class _Weighted:
    """Values (.., keys, .., size), each multiplied by a weight; ``factors`` are the weights, with a last size of 1."""

    weights: _Weights
    factors: Tensor
    values: Tensor


_Origin: TypeAlias = _Parameter | _Scores | _Energies | _Weights | _Weighted


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
        place = _LINEAR_MAPS.get(operation)
        if place is not None and self._is_column(arguments[place], arguments[place + 1], output):
            self._set(output, _Energies())
            return None
        if operation in _PRODUCTS:
            place = _PRODUCTS[operation]
            return self._follow_product(arguments[place], arguments[place + 1], output, running)
        if operation in _SOFTMAXES:
            self._follow_softmax(arguments[0], arguments[1], output, layer)
            return None
        if operation is _MULTIPLY:
            weighted = self._find_weighted(*arguments)
            if weighted is not None:
                self._set(output, weighted)
                return None
        if operation is _SUM:
            added = self._get(arguments[0])
            if isinstance(added, _Weighted):
                return _follow_sum(added, arguments[0], arguments[1], running)
        known = [self._get(tensor) for tensor in tree_iter(arguments) if isinstance(tensor, Tensor)]
        origin = next((found for found in known if isinstance(found, _Scores | _Energies | _Weights)), None)
        if origin is None and operation is _CAST and isinstance(known[0], _Parameter):
            self._set(output, known[0])
        if origin is not None:
            for tensor in tree_iter(output):
                if isinstance(tensor, Tensor):
                    self._set_computed(tensor, origin)
        return None

    def _find_weighted(self, left: Tensor, right: Any) -> _Weighted | None:
        """Find the weights and values of a product element by element; None if it is of others."""
        if not isinstance(right, Tensor):
            return None
        for factors, values in ((left, right), (right, left)):
            found = self._get(factors)
            if (
                isinstance(found, _Weights)
                and not isinstance(self._get(values), _Parameter | _Weights)
                and factors.dim() == values.dim() > 2
                and factors.shape[-1] == 1 < values.shape[-1]
            ):
                return _Weighted(found, factors.detach(), values.detach())
        return None

    def _is_column(self, left: Tensor, right: Tensor, output: Tensor) -> bool:
        """Whether a product is one with a column of weights, or with a row from the left."""
        if right.dim() == 1 or output.shape[-1] == 1:
            return isinstance(self._get(right), _Parameter) and not isinstance(self._get(left), _Parameter)
        return output.shape[-2] == 1 and isinstance(self._get(left), _Parameter)

    def _follow_product(
        self, left: Tensor, right: Tensor, output: Tensor, running: Sequence[nn.Module]
    ) -> LayerCall | None:
        origins = self._get(left), self._get(right)
        mixed = _find_mixed_heads(origins, (left, right), running)
        if mixed is not None:
            self._set_computed(output, mixed)
            return None
        for weights, of_values, product, values in (
            (*origins, left, right),
            (*origins[::-1], right.mT, left.mT),
        ):
            if isinstance(of_values, _Parameter):
                continue
            if isinstance(weights, _Scores) and _are_weights(product):
                shape = weights.shape if weights.shape[-2:] == product.shape[-2:] else product.shape
                return make_written_call(
                    product.detach().clone().reshape(shape), (weights.query, weights.key), None, values, running
                )
            if isinstance(weights, _Weights):
                found = find_weights(product, weights.read(), head_counts(running))
                if found is not None:
                    return _make_softmax_call(found, weights, product, values, running)
        if not any(isinstance(origin, _Parameter | _Weights) for origin in origins):
            self._set(output, _Scores(left.detach(), right.mT.detach(), output.shape))
        return None

    def _follow_softmax(self, scores: Tensor, dim: int, output: Tensor, layer: str) -> None:
        origin = self._get(scores)
        if not isinstance(origin, _Scores | _Energies) or output.shape[dim] == 1 or output.dim() < 2:
            return
        softmax, product = _Softmax(layer), origin if isinstance(origin, _Scores) else None
        if product is not None:
            self._softmaxes.append(softmax)
        weights, ordered = (side.detach().movedim(dim, -1) for side in (output, scores))
        is_last = dim in (-1, output.dim() - 1)
        self._set(output, _Weights(weights.shape, weights, ordered, product, softmax, is_last))

    def _get(self, tensor: Tensor) -> _Origin | None:
        found = self._known.get(_address(tensor))
        return None if found is None or found[0].expired() else found[1]

    def _set_computed(self, tensor: Tensor, origin: _Origin) -> None:
        """Set what a tensor was computed from. A view of scores keeps the shape that they had before it."""
        found = self._get(tensor)
        if isinstance(origin, _Scores) and not (isinstance(found, _Scores) and found.query is origin.query):
            origin = replace(origin, shape=tensor.shape)
        self._set(tensor, origin)

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
            and heads in head_counts(running)
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


@torch.no_grad()
def _are_weights(product: Tensor) -> bool:
    """Whether the left factor of a product is not below 0, and its rows sum to 1, or to 0 where nothing is visible."""
    if product.shape[-1] < 2 or not product.is_floating_point():
        return False
    sums = product.sum(-1, dtype=torch.float32)
    tolerance = max(_SUM_TOLERANCE, 4 * torch.finfo(product.dtype).eps)
    return bool((((sums - 1).abs() <= tolerance) | (sums == 0)).all() and sums.any() and (product >= 0).all())


def _make_softmax_call(
    found: tuple[int, ...] | Tensor, weights: _Weights, product: Tensor, values: Tensor, running: Sequence[nn.Module]
) -> LayerCall | None:
    """The call of a layer whose softmax was found in the left factor of a product: see ``find_weights``."""
    scores = None
    if isinstance(found, tuple):
        used = weights.read().permute(found)
        if weights.final_scores is not None:
            scores = weights.final_scores.permute(found)
        if used.dim() == 2 and product.dim() == 3:  # one query of each text
            used = used.reshape(product.shape)
    else:
        used = found
        if not has_factor(product.reshape(used.shape), used):  # such as after a gate, or mixed across heads
            used = product.detach().clone().reshape(used.shape)
    factors = None if weights.scores is None else (weights.scores.query, weights.scores.key)
    call = make_written_call(used, factors, scores, values, running, is_order_known=weights.is_order_known)
    weights.softmax.is_used |= call is not None
    if call is not None and scores is not None:
        weights.let_go(call, used.shape)
    return call


def _follow_sum(
    weighted: _Weighted, products: Tensor, axes: Sequence[int], running: Sequence[nn.Module]
) -> LayerCall | None:
    """The call of a layer that sums weighted values along the keys; None if the sum is along other axes."""
    axis = axes[0] % products.dim() if len(axes) == 1 else products.dim() - 1
    factors, values = weighted.factors, weighted.values
    if products.shape != torch.broadcast_shapes(factors.shape, values.shape) or factors.shape[axis] == 1:
        return None
    rows, values = factors[..., 0].movedim(axis, -1), values.movedim(axis, -2)
    if rows.dim() == 2:
        rows = rows[:, None]
    elif values.shape[-3] == 1:  # the axis of the queries
        values = values.squeeze(-3)
    else:
        return None
    found = find_weights(rows, weighted.weights.read(), head_counts(running))
    return None if found is None else _make_softmax_call(found, weighted.weights, rows, values, running)
