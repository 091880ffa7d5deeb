"""A window, or chunks, that the model declares hold at their exact edge, in each layer that has them.

A causal window of W keys lets output i depend on tokens i - W + 1 to i. Each attention module is measured alone
(``regard.auditing.reach``), so layers without a window, and the growth of the reach over layers, do not blur the edge.
A window longer than the text is set to 5 keys for the trial, in the config and in all modules that hold its number.
With chunks of C tokens output i depends on tokens C * (i // C) to i.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from regard.auditing.compare import Outcome
from regard.auditing.declared_mask import (
    WINDOW_NAMES,
    chunked_modules,
    declared_chunk,
    declared_window,
    same_chunk,
    text_config,
    windowed_modules,
)
from regard.auditing.properties.property import Property
from regard.auditing.reach import measure_reach, reads_own_keys
from regard.auditing.results import NoiseFloor
from regard.auditing.subject import Subject

SHORT = 5
"""Keys of a window that is too long for a text."""


def _cannot_ask(subject: Subject) -> str | None:
    if declared_window(subject) is None:
        return "the model declares no window"
    if not subject.causal:
        return "windows are tried in causal models"
    return None if windowed_modules(subject) else "no module holds the declared window"


def _cannot_ask_chunks(subject: Subject) -> str | None:
    if declared_chunk(subject) is None:
        return "the model declares no chunks"
    return None if subject.causal and chunked_modules(subject) else "no causal layer has chunks"


@contextmanager
def _set_size(subject: Subject, modules: dict[str, nn.Module], names: Sequence[str], size: int) -> Iterator[None]:
    """Set a size that the config declares to another one, in the config and in modules that hold its number."""
    before = next((value for name in names if (value := getattr(text_config(subject), name, None))), None)
    holders = [text_config(subject), *modules.values(), *(subject.module.modules() if subject.module else ())]
    changed = []
    for holder in holders:
        for name in names:
            if getattr(holder, name, None) == before and before is not None:
                setattr(holder, name, size)
                changed.append((holder, name))
    try:
        yield
    finally:
        for holder, name in changed:
            setattr(holder, name, before)


def _measure_chunks(subject: Subject, noise: NoiseFloor) -> Sequence[Outcome]:
    modules, length = chunked_modules(subject), subject.stream.length
    declared = declared_chunk(subject) or 0
    size = declared if declared <= length // 2 else SHORT
    with _set_size(subject, modules, ("attention_chunk_size",), size):
        reaches = {name: measure_reach(subject, module) for name, module in modules.items()}
    found = [_judge_chunk(name, reach, size, noise) for name, reach in reaches.items() if reach is not None]
    if not found:
        raise RuntimeError("no module with chunks has inputs and outputs by position")
    return found


def _describe_chunk(size: int, *, is_blind: bool) -> str:
    if is_blind:
        return f"tokens of its own chunk of {size} are hidden from a token"
    return f"it reads tokens of other chunks than its own one of {size}"


def _describe_window(window: int, keys: int, length: int) -> str:
    if keys >= length:
        return f"the window of {window} keys is ignored: the layer reads {keys} keys back"
    return f"the layer reads {keys} keys back, and the window has {window}: its edge is off"


def _judge_chunk(name: str, reach: torch.Tensor, size: int, noise: NoiseFloor) -> Outcome:
    """Compare the reach of a module with its chunks: what it reads of others, and what it does not of its own."""
    threshold, length = noise.threshold(1.0), len(reach)
    allowed = same_chunk(length, size) & torch.ones(length, length, dtype=torch.bool).tril()
    outside = torch.where(allowed, 0.0, reach)
    blind = allowed & (reach <= threshold)
    if float(outside.max()) <= threshold and bool(blind.any()):
        row, column = (int(place) for place in blind.nonzero()[0])
        cause = _describe_chunk(size, is_blind=True)
        return Outcome(float("inf"), threshold, f"token {column} was replaced", row, column, module=name, cause=cause)
    row, column = divmod(int(outside.argmax()), length)
    cause = _describe_chunk(size, is_blind=False)
    return Outcome(
        float(outside.max()), threshold, f"token {column} was replaced", row, column, module=name, cause=cause
    )


def _measure(subject: Subject, noise: NoiseFloor) -> Sequence[Outcome]:
    modules = windowed_modules(subject)
    window, length = declared_window(subject) or 0, subject.stream.length
    tried = window if window <= length - 3 else SHORT
    found = []
    with _set_size(subject, modules, WINDOW_NAMES, tried):
        for name, module in modules.items():
            reach = measure_reach(subject, module)
            if reach is not None and reads_own_keys(reach, noise.threshold(1.0)):
                found.append(_judge(name, reach, tried, noise))
    if not found:
        raise RuntimeError("no module with a window has inputs and outputs by position")
    return found


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
            cause=_describe_window(window, farthest, length),
        )
    if bool((reach[edge] <= threshold).all()):
        nearest = int(distance[(reach > threshold) & (distance >= 0)].max()) + 1
        cause = _describe_window(window, nearest, length)
        return Outcome(float("inf"), threshold, f"the token {window - 1} before was replaced", module=name, cause=cause)
    return Outcome(largest, threshold, "")


WINDOW = (
    Property(
        "window",
        "each layer with a window depends on as many tokens as it declares, and on no others",
        _cannot_ask,
        measure=_measure,
    ),
    Property(
        "chunks",
        "each layer with chunks depends on the earlier tokens of a token's own chunk, and on no others",
        _cannot_ask_chunks,
        measure=_measure_chunks,
    ),
)
