"""A window that the model declares holds at its exact edge, in each layer that has one.

A causal window of W keys lets output i depend on tokens i - W + 1 to i. Each attention module is measured alone
(``regard.auditing.reach``), so layers without a window, and the growth of the reach over layers, do not blur the edge.
A window longer than the text is set to 5 keys for the trial, in the config and in all modules that hold its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from regard.auditing.compare import Outcome
from regard.auditing.declared_mask import WINDOW_NAMES, declared_window, text_config, windowed_modules
from regard.auditing.properties.property import Property
from regard.auditing.reach import measure_reach
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


@contextmanager
def _short_window(subject: Subject, modules: dict[str, nn.Module], window: int) -> Iterator[None]:
    """Set the window in the config and in modules to a smaller number of keys."""
    before = declared_window(subject)
    holders = [text_config(subject), *modules.values(), *(subject.module.modules() if subject.module else ())]
    changed = []
    for holder in holders:
        for name in WINDOW_NAMES:
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
