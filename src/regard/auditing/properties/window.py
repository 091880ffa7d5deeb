"""A window that the model declares holds at its exact edge, in each layer that has one.

A causal window of W keys lets output i depend on tokens i - W + 1 to i. Each attention module is measured alone
(``regard.auditing.reach``), so layers without a window, and the growth of the reach over layers, do not blur the edge.
A window longer than the text is set to 5 keys for the trial, in the config and in all modules that hold its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from regard.auditing.compare import Outcome
from regard.auditing.properties.property import Property
from regard.auditing.reach import is_attention, measure_reach
from regard.auditing.results import NoiseFloor
from regard.auditing.subject import Subject

SHORT = 5
"""Keys of a window that is too long for a text."""

_NAMES = ("sliding_window", "attention_window_size", "window_size", "sliding_window_size")


def declared_window(subject: Subject) -> int | None:
    """The window in the config of a model; None without one."""
    for name in _NAMES:
        value = getattr(_config(subject), name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _config(subject: Subject) -> Any:
    config = subject.config if subject.config is not None else getattr(subject.module, "config", None)
    return config.get_text_config() if config is not None and hasattr(config, "get_text_config") else config


def windowed_modules(subject: Subject) -> dict[str, nn.Module]:
    """Attention layers that hold the number of the declared window, and use it, by name."""
    window = declared_window(subject)
    if window is None or subject.module is None:
        return {}
    return {
        name: part
        for name, part in subject.module.named_modules()
        if name and _holds(part, window) and is_attention(part) and _uses_window(subject, part)
    }


def _holds(module: nn.Module, window: int | None) -> bool:
    """Whether a module, or the config that it keeps, has the number of the window."""
    holders = (module, getattr(module, "config", None))
    return any(getattr(holder, name, None) == window for holder in holders for name in _NAMES)


def _uses_window(subject: Subject, module: nn.Module) -> bool:
    """Whether a layer that holds the number of the window has one, and nothing else that reads back.

    The config has a type for each layer: layers of another type, such as full ones and ones that read compressed keys
    as well, may hold the number, too. A mask that was made with the layer, as in GPT-Neo, keeps the window that it had.
    """
    if any(buffer.dim() >= 2 and buffer.shape[-1] == buffer.shape[-2] > 1 for buffer in module.buffers()):
        return False
    types, number = getattr(_config(subject), "layer_types", None), getattr(module, "layer_idx", None)
    if getattr(module, "is_sliding", True) is False:
        return False
    if isinstance(types, list | tuple) and isinstance(number, int) and number < len(types):
        return bool(types[number] == "sliding_attention")
    return True


def _cannot_ask(subject: Subject) -> str | None:
    if declared_window(subject) is None:
        return "the model declares no window"
    if not subject.causal:
        return "windows are tried in causal models"
    return None if windowed_modules(subject) else "no module holds the declared window"


@contextmanager
def _short_window(subject: Subject, modules: dict[str, nn.Module], window: int) -> Iterator[None]:
    """Set the window in the config and in modules to a smaller number of keys."""
    before = declared_window(subject)
    holders = [_config(subject), *modules.values(), *(subject.module.modules() if subject.module else ())]
    changed = []
    for holder in holders:
        for name in _NAMES:
            if getattr(holder, name, None) == before and before is not None:
                setattr(holder, name, window)
                changed.append((holder, name))
    try:
        yield
    finally:
        for holder, name in changed:
            setattr(holder, name, before)


def _measure(subject: Subject, noise: NoiseFloor) -> Sequence[Outcome]:
    modules = windowed_modules(subject)
    window, length = declared_window(subject) or 0, subject.stream.length
    tried = window if window <= length - 3 else SHORT
    found = []
    with _short_window(subject, modules, tried):
        for name, module in modules.items():
            reach = measure_reach(subject, module)
            if reach is not None and _reads_its_own_keys(reach, noise):
                found.append(_judge(name, reach, tried, noise))
    if not found:
        raise RuntimeError("no module with a window has inputs and outputs by position")
    return found


def _reads_its_own_keys(reach: torch.Tensor, noise: NoiseFloor) -> bool:
    """Whether a module reads keys of its own input: those that share the keys of an earlier layer do not."""
    return bool((reach.tril(-1) > noise.threshold(1.0)).any())


def _judge(name: str, reach: torch.Tensor, window: int, noise: NoiseFloor) -> Outcome:
    """Compare the reach of a module with its window: the largest influence outside, or the smallest at the edge."""
    threshold = noise.threshold(1.0)
    length = reach.shape[0]
    distance = torch.arange(length)[:, None] - torch.arange(length)
    outside, edge = distance >= window, distance == window - 1
    influences = torch.where(outside, reach, 0.0)
    largest = float(influences.max())
    if largest > threshold:
        place = int(influences.argmax())
        farthest = int(distance[(reach > threshold) & (distance >= 0)].max()) + 1
        row, column = divmod(place, length)
        return Outcome(
            largest,
            threshold,
            f"token {column} was replaced",
            row,
            column,
            module=name,
            cause=f"the window of {window} keys is ignored: the layer reads {farthest} keys back"
            if farthest >= length
            else f"the layer reads {farthest} keys back, and the window has {window}",
        )
    if bool((reach[edge] <= threshold).all()):
        nearest = int(distance[(reach > threshold) & (distance >= 0)].max()) + 1
        cause = f"the layer reads {nearest} keys back, and the window has {window}: its edge is off"
        return Outcome(float("inf"), threshold, f"the token {window - 1} before was replaced", module=name, cause=cause)
    return Outcome(largest, threshold, "")


WINDOW = (
    Property(
        "window",
        "each layer with a window depends on as many tokens as it declares, and on no others",
        _cannot_ask,
        measure=_measure,
    ),
)
