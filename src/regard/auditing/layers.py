"""The first module that leaks: its outputs differ where a property forbids it, and its inputs there agree.

Both calls of a comparison run with hooks on every module. Each hook keeps the rows and positions that the property
compares, of every tensor that has them. Modules are ordered by the end of their calls, so that a part comes before the
module which contains it: the first that leaks is also the smallest. What happens between two modules, such as attention
in the code of a layer, is found in the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from regard.auditing.calls import Call, Comparison, Span
from regard.auditing.noise import changes_from_first, distance
from regard.auditing.results import ModuleDifference, ModuleInfluence, NoiseFloor
from regard.auditing.subject import Subject


@final
@dataclass(frozen=True, eq=False)
class LeakingModule:
    """The module in which a leak begins, and the differences of all. ``name`` is "" for the model itself."""

    name: str
    module: nn.Module
    differences: tuple[ModuleDifference, ...] = ()

    @property
    def layer(self) -> int | None:
        """The first number in its name."""
        return next((int(part) for part in self.name.split(".") if part.isdecimal()), None)


@final
@dataclass(eq=False)
class _Values:
    """Inputs and outputs of a module at the positions of a span.

    ``is_known`` is False if it read numbers, and none of them by position: what its inputs are is then not known.
    """

    is_known: bool = True
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)


def find_leaking_module(subject: Subject, comparison: Comparison, noise: NoiseFloor) -> LeakingModule | None:
    """The module in which the difference of a comparison begins; None if no module is known to."""
    if subject.module is None:
        return None
    base = _trace(subject, comparison.base, comparison)
    other = _trace(subject, comparison.other, comparison)
    threshold = noise.threshold(1.0)
    modules = dict(subject.module.named_modules())
    for name, before in base.items():
        after = other.get(name)
        if (
            after is not None
            and before.is_known
            and after.is_known
            and (_largest_distance(before.outputs, after.outputs) or 0.0) > threshold
            and not (_largest_distance(before.inputs, after.inputs) or 0.0) > threshold
        ):
            return LeakingModule(name, modules[name], _differences(base, other, modules))
    return None


def measure_modules(subject: Subject, call: Call, declared: Tensor | None) -> tuple[ModuleInfluence, ...]:
    """How much each module's outputs change in a call that ``replacements`` made, by what ``declared`` allows."""
    if subject.module is None:
        return ()
    changes: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: Any, result: Any) -> None:
            del module, arguments
            found = (_change_of_rows(tensor, call.batch) for tensor in _tensors(result))
            for change in (change for change in found if change is not None):
                changes[name] = torch.maximum(changes[name], change) if name in changes else change

        return hook

    with ExitStack() as stack:
        for name, part in subject.module.named_modules():
            stack.enter_context(part.register_forward_hook(keep(name)))
        subject.run(call)
    modules = dict(subject.module.named_modules())
    return tuple(
        ModuleInfluence(
            name,
            type(modules[name]).__name__,
            float(change.max() if declared is None else change[declared].max()),
            None if declared is None or declared.all() else float(change[~declared].max()),
        )
        for name, change in changes.items()
    )


def _change_of_rows(tensor: Tensor, batch: int) -> Tensor | None:
    """Changes (outputs, inputs) of the rows of a tensor from its first one; None if it has not all positions."""
    rows = [row_of(tensor, batch, batch - 1, row) for row in range(batch)]
    known = [row for row in rows if row is not None and len(row) == batch - 1]
    if len(known) < batch:
        return None
    return changes_from_first(torch.stack(known))


def _differences(
    base: Mapping[str, _Values], other: Mapping[str, _Values], modules: Mapping[str, nn.Module]
) -> tuple[ModuleDifference, ...]:
    return tuple(
        ModuleDifference(
            name,
            type(modules[name]).__name__,
            _largest_distance(before.inputs, other[name].inputs) if before.is_known else None,
            _largest_distance(before.outputs, other[name].outputs),
        )
        for name, before in base.items()
        if name in other
    )


def _largest_distance(base: Sequence[Tensor], other: Sequence[Tensor]) -> float | None:
    pairs = [(left, right) for left, right in zip(base, other, strict=False) if left.shape == right.shape]
    return max((distance(left, right) for left, right in pairs), default=None)


def _trace(subject: Subject, span: Span, comparison: Comparison) -> dict[str, _Values]:
    """Inputs and outputs of every module at the positions of a span, in the order in which calls of modules end.

    A module that is called more than once has the values of all calls: of each step, and of each place that shares it.
    """
    values: dict[str, _Values] = {}
    with _hooks(subject, span, values):
        subject.run(span.call)
    return {name: _cut_values(found, span, comparison) for name, found in values.items()}


def _cut_values(values: _Values, span: Span, comparison: Comparison) -> _Values:
    inputs = _cut_steps(values.inputs, span, comparison)
    is_known = values.is_known and bool(inputs) == bool(values.inputs)
    return _Values(is_known, inputs, _cut_steps(values.outputs, span, comparison))


@contextmanager
def _hooks(subject: Subject, span: Span, values: dict[str, _Values]) -> Iterator[None]:
    assert subject.module is not None
    lengths = [step.length for step in span.call.steps]
    lengths += [span.read[0]] if span.read[0] else []
    has_positions = bool(subject.stream.dims) or lengths != [1]

    def find_rows(tensors: Sequence[Tensor]) -> list[Tensor]:
        return _rows(tensors, span, lengths) if has_positions else _whole_rows(tensors, span)

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: Any, keywords: Any, result: Any) -> None:
            del module
            found = values.setdefault(name, _Values())
            read = list(_tensors([arguments, keywords], with_ids=True))
            rows = find_rows(read)
            found.inputs += rows
            found.is_known &= bool(rows) or not read
            found.outputs += find_rows(list(_tensors(result)))

        return hook

    handles = [
        part.register_forward_hook(keep(name), with_kwargs=True) for name, part in subject.module.named_modules()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _tensors(value: Any, *, with_ids: bool = False) -> Iterator[Tensor]:
    """The tensors of numbers in a value: arguments, a tuple, a mapping, or an object that has them as attributes."""
    if isinstance(value, Tensor):
        if value.is_nested:
            return
        if value.is_floating_point() or (with_ids and value.dtype == torch.long):
            yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part, with_ids=with_ids)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part, with_ids=with_ids)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from _tensors(getattr(value, name, None), with_ids=with_ids)
    elif hasattr(value, "__dict__") and not isinstance(value, nn.Module):  # such as an output of a class of the user's
        for part in vars(value).values():
            if isinstance(part, Tensor):
                yield from _tensors(part, with_ids=with_ids)


def _rows(tensors: Sequence[Tensor], span: Span, lengths: Sequence[int]) -> list[Tensor]:
    """The row of a span of each tensor that has batch and positions, as (positions, features)."""
    found = []
    for tensor in tensors:
        for length in dict.fromkeys(lengths):
            row = row_of(tensor, span.call.batch, length, span.row)
            if row is not None:
                found.append(row.detach().clone())
                break
    return found


def _whole_rows(tensors: Sequence[Tensor], span: Span) -> list[Tensor]:
    """All of the row of a span, as (1, numbers), where there are no positions: of a picture, and of all its windows."""
    batch = span.call.batch
    return [
        tensor.unflatten(0, (batch, -1))[span.row].reshape(1, -1).detach().clone()
        for tensor in tensors
        if tensor.dim() > 1 and tensor.shape[0] % batch == 0
    ]


def row_of(tensor: Tensor, batch: int, length: int, row: int) -> Tensor | None:
    """One row of a tensor with a batch and positions, as (positions, features); None if it has no such dimensions.

    A tensor with two dimensions of the length is a mask or weights, and has no single one.
    """
    shape = tuple(tensor.shape)
    if length > 1 and shape.count(length) > 1 and batch != length:
        return None
    if tensor.dim() == 2 and shape[0] == batch * length:
        return tensor.unflatten(0, (batch, length))[row]
    if tensor.dim() == 2 and shape[0] == batch and shape[1] != length:
        return tensor[row][None]  # a vector for the whole row, such as a pooled one
    if tensor.dim() < 2 or (shape[0] not in (batch, 1) and shape[1] != batch):
        return None
    if shape[0] in (batch, 1) and length in shape[1:]:
        dims = [dim for dim in range(1, tensor.dim()) if shape[dim] == length]
        dim = dims[0] if tensor.dim() < 4 or len(dims) == 1 else dims[-1]
        return tensor[row if shape[0] == batch else 0].movedim(dim - 1, 0).reshape(length, -1)
    if shape[0] == length and shape[1] == batch and tensor.dim() >= 3:
        return tensor[:, row].reshape(length, -1)
    return None


def _cut_steps(rows: Sequence[Tensor], span: Span, comparison: Comparison) -> list[Tensor]:
    """The compared positions; rows of several steps are joined if their lengths make up the whole call."""
    end = span.start + comparison.count
    lengths = [step.length for step in span.call.steps]
    if len(lengths) > 1:
        by_width: dict[int, list[Tensor]] = {}
        for row in rows:
            by_width.setdefault(row.shape[1], []).append(row)
        whole = [parts for parts in by_width.values() if [len(part) for part in parts] == lengths]
        return [torch.cat(parts)[span.start : end] for parts in whole]
    length, start = span.read
    return [
        row[start : start + comparison.read] if len(row) == length else row if len(row) == 1 else row[span.start : end]
        for row in rows
    ]
