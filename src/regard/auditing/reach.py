"""The reach of one module: which positions of its input change which positions of its output.

The model runs on copies of one text. In copy j + 1 a hook changes the module's input at position j, and nothing else.
So the matrix is that of the module alone, whatever the layers before it mix.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.auditing.calls import Call
from regard.auditing.layers import row_of
from regard.auditing.noise import changes_from_first, largest
from regard.auditing.subject import Row, Subject, expand_rows, read_output
from regard.errors import RefusedError


def is_attention(module: nn.Module) -> bool:
    """Whether the class of a module is named after attention."""
    return any(word in type(module).__name__.lower() for word in ("attention", "attn", "attend"))


def reads_own_keys(reach: Tensor, threshold: float) -> bool:
    """Whether a causal module reads keys of its own input: those that share the keys of an earlier layer do not."""
    return bool((reach.tril(-1) > threshold).any())


def measure_reach(
    subject: Subject,
    module: nn.Module,
    *,
    changed: nn.Module | None = None,
    part: tuple[int, int] = (0, 1),
    arguments: Mapping[str, Any] | None = None,
    call: Call | None = None,
    alike: bool = False,
) -> Tensor | None:
    """A matrix (outputs, inputs) of relative changes; None if the module has no inputs or outputs by position.

    ``changed`` changes the output of this part instead of the input of the module; ``part`` = (k, n) only the k-th of n
    equal shares of its features, such as the keys of a projection to queries, keys and values. ``arguments`` of one row
    are passed to the model. A ``call`` replaces that of a whole text: one row more than positions, in one step or in
    several with a cache. ``alike`` adds the same numbers at every position of a part that is ``changed``.
    """
    if call is None:
        length = subject.stream.length
        call = subject.call([Row(subject.text(1))] * (length + 1), **expand_rows(arguments or {}, length + 1))
    spans, rows = _spans(call), call.batch
    kept: list[Tensor] = []
    was_changed: list[bool] = []
    if changed is None:
        handle = module.register_forward_pre_hook(_change_inputs(spans, rows, was_changed), with_kwargs=True)
    else:
        handle = changed.register_forward_hook(_change_outputs(spans, rows, was_changed, part, alike))
    with handle, module.register_forward_hook(_keep_outputs(kept, len(spans))):
        subject.run(call)
    if not was_changed or len(kept) < len(spans):
        return None
    steps = [
        [row_of(step, rows, len(span), row) for row in range(rows)] for step, span in zip(kept, spans, strict=True)
    ]
    if any(row is None for step in steps for row in step):
        return None
    outputs = torch.cat([torch.stack([row for row in step if row is not None]) for step in steps], 1)
    return changes_from_first(outputs)


def _spans(call: Call) -> list[range]:
    """The positions of each step of a call."""
    ends = [0, *itertools.accumulate(step.length for step in call.steps)]
    return [range(start, end) for start, end in itertools.pairwise(ends)]


def _keep_outputs(kept: list[Tensor], steps: int) -> Callable[..., None]:
    def hook(module: nn.Module, arguments: Any, result: Any) -> None:
        del module, arguments
        first = _first_output(result)
        if first is not None and len(kept) < steps:
            kept.append(first.detach().clone())

    return hook


def _first_output(value: Any) -> Tensor | None:
    """The first tensor of numbers in what a module returns; None without one."""
    if isinstance(value, tuple | list):
        return next((found for part in value if (found := _first_output(part)) is not None), None)
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else None
    try:
        return read_output(value)
    except RefusedError:
        return None


def _change(
    tensor: Tensor, count: int, span: range, part: tuple[int, int] = (0, 1), *, alike: bool = False
) -> Tensor | None:
    """A tensor (count rows, positions of the span, ..) in which row j + 1 is changed at position j; None for others."""
    shape, size = tuple(tensor.shape), len(span)
    if not tensor.is_floating_point() or tensor.dim() < 3:
        return None
    if shape[:2] == (count, size):
        changed = tensor.clone()
        rows = changed
    elif shape[:2] == (size, count):
        changed = tensor.clone()
        rows = changed.transpose(0, 1)
    elif shape[0] == count and shape[2] == size and (tensor.dim() == 3 or (tensor.dim() == 4 and shape[3] != size)):
        changed = tensor.clone()  # channels first, or heads first; a mask is (batch, heads, size, size)
        rows = changed.transpose(1, 2)
    else:
        return None
    generator = torch.Generator().manual_seed(5)
    width = math.prod(rows.shape[2:])
    share, shares = part
    noise = torch.randn(count - 1, width, generator=generator, dtype=torch.float64).to(rows)
    keep = torch.zeros(width, dtype=torch.bool)
    keep[share * width // shares : (share + 1) * width // shares] = True
    noise = noise[:1].expand(size, -1) if alike else noise[span.start : span.stop] * max(largest(tensor), 1.0)
    noise = (noise * keep).reshape(size, *rows.shape[2:])
    with torch.no_grad():
        rows[torch.arange(span.start, span.stop) + 1, torch.arange(size)] += noise
    return changed


def _change_inputs(spans: Sequence[range], count: int, was_changed: list[bool]) -> Callable[..., Any]:
    following = iter(spans)

    def hook(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        del module
        span = next(following, spans[-1])
        tensors = [value for value in (*arguments, *keywords.values()) if isinstance(value, Tensor)]
        kinds = [_shape_of_heads(tensor) for tensor in tensors if _change(tensor, count, span) is not None]
        if not kinds:
            return None

        def change(value: Any) -> Any:
            is_like_first = isinstance(value, Tensor) and _shape_of_heads(value) == kinds[0]
            changed = _change(value, count, span) if is_like_first else None
            return value if changed is None else changed

        was_changed.append(True)
        return tuple(map(change, arguments)), {name: change(value) for name, value in keywords.items()}

    return hook


def _shape_of_heads(tensor: Tensor) -> tuple[int, ...]:
    """The shape without the number of heads, in which queries and keys may differ."""
    shape = tuple(tensor.shape)
    return (shape[0], *shape[2:]) if tensor.dim() == 4 else shape


def _change_outputs(
    spans: Sequence[range], count: int, was_changed: list[bool], part: tuple[int, int], alike: bool
) -> Callable[..., Any]:
    following = iter(spans)

    def hook(module: nn.Module, arguments: Any, result: Any) -> Any:
        del module, arguments
        span = next(following, spans[-1])
        changed = _change(result, count, span, part, alike=alike) if isinstance(result, Tensor) else None
        if changed is not None:
            was_changed.append(True)
        return changed

    return hook
