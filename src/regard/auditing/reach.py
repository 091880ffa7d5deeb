"""The reach of one module: which positions of its input change which positions of its output.

The model runs on copies of one text. In copy j + 1 a hook changes the module's input at position j, and nothing else.
So the matrix is that of the module alone, whatever the layers before it mix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from regard.auditing.layers import row_of
from regard.auditing.noise import largest
from regard.auditing.subject import Row, Subject, expand_rows


def is_attention(module: nn.Module) -> bool:
    """Whether the class of a module is named after attention."""
    return any(word in type(module).__name__.lower() for word in ("attention", "attn"))


def measure_reach(
    subject: Subject,
    module: nn.Module,
    *,
    changed: nn.Module | None = None,
    part: tuple[int, int] = (0, 1),
    arguments: Mapping[str, Any] | None = None,
) -> Tensor | None:
    """A matrix (outputs, inputs) of relative changes; None if the module has no inputs or outputs by position.

    ``changed`` changes the output of this part instead of the input of the module; ``part`` = (k, n) only the k-th of n
    equal shares of its features, such as the keys of a projection to queries, keys and values. ``arguments`` of one row
    are passed to the model.
    """
    length = subject.stream.length
    call = subject.call([Row(subject.text(1))] * (length + 1), **expand_rows(arguments or {}, length + 1))
    kept: list[Tensor] = []
    was_changed: list[bool] = []
    if changed is None:
        handle = module.register_forward_pre_hook(_change_inputs(length, was_changed), with_kwargs=True)
    else:
        handle = changed.register_forward_hook(_change_outputs(length, was_changed, part))
    with handle, module.register_forward_hook(_keep_outputs(kept)):
        subject.run(call)
    rows = [row_of(kept[0], length + 1, length, row) for row in range(length + 1)] if kept else []
    if not was_changed or not rows or any(row is None for row in rows):
        return None
    outputs = torch.stack([row for row in rows if row is not None])
    changes = (outputs[1:] - outputs[:1]).abs().amax(-1).T / (largest(outputs[0]) or 1.0)
    return changes.nan_to_num(nan=float("inf"), posinf=float("inf"))


def _keep_outputs(kept: list[Tensor]) -> Callable[..., None]:
    def hook(module: nn.Module, arguments: Any, result: Any) -> None:
        del module, arguments
        first = next((part for part in _flat(result) if isinstance(part, Tensor) and part.is_floating_point()), None)
        if first is not None and not kept:
            kept.append(first.detach().clone())

    return hook


def _flat(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [leaf for part in value for leaf in _flat(part)]
    return [getattr(value, "last_hidden_state", value)]


def _change(tensor: Tensor, length: int, part: tuple[int, int] = (0, 1)) -> Tensor | None:
    """A tensor (length + 1 rows, length, ..) in which row j + 1 is changed at position j; None for other shapes."""
    shape = tuple(tensor.shape)
    if not tensor.is_floating_point() or tensor.dim() < 3:
        return None
    if shape[:2] == (length + 1, length):
        changed = tensor.clone()
        rows = changed
    elif shape[:2] == (length, length + 1):
        changed = tensor.clone()
        rows = changed.transpose(0, 1)
    elif tensor.dim() == 3 and shape[0] == length + 1 and shape[2] == length:  # channels first
        changed = tensor.clone()
        rows = changed.transpose(1, 2)
    else:
        return None
    generator = torch.Generator().manual_seed(5)
    width = rows[0, 0].numel()
    share, shares = part
    noise = torch.randn(length, width, generator=generator, dtype=torch.float64).to(rows)
    keep = torch.zeros(width, dtype=torch.bool)
    keep[share * width // shares : (share + 1) * width // shares] = True
    noise = (noise * keep).reshape(length, *rows.shape[2:]) * max(largest(tensor), 1.0)
    index = torch.arange(length)
    with torch.no_grad():
        rows[index + 1, index] += noise
    return changed


def _change_inputs(length: int, was_changed: list[bool]) -> Callable[..., Any]:
    def hook(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        del module
        values = [*arguments, *keywords.values()]
        shapes = [value.shape for value in values if isinstance(value, Tensor) and _change(value, length) is not None]
        if not shapes:
            return None

        def change(value: Any) -> Any:
            changed = _change(value, length) if isinstance(value, Tensor) and value.shape == shapes[0] else None
            return value if changed is None else changed

        was_changed.append(True)
        return tuple(map(change, arguments)), {name: change(value) for name, value in keywords.items()}

    return hook


def _change_outputs(length: int, was_changed: list[bool], part: tuple[int, int]) -> Callable[..., Any]:
    def hook(module: nn.Module, arguments: Any, result: Any) -> Any:
        del module, arguments
        changed = _change(result, length, part) if isinstance(result, Tensor) else None
        if changed is not None:
            was_changed.append(True)
        return changed

    return hook
