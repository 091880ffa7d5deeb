"""The tensors in which a model keeps what it has read: those of a cache, and those that modules keep in themselves.

Beams go on in one another's rows, so each of these tensors must follow when a cache is reordered. Which ones do not is
seen by their numbers, before and behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from regard.auditing.calls import Call
from regard.auditing.compare import Outcome
from regard.auditing.subject import Subject, read_cache

_DEPTH = 6
"""How many objects, lists and mappings deep the tensors of a cache are looked for."""


def find_unmoved(subject: Subject, outcome: Outcome) -> str:
    """The tensors of a cache, by name, that a step which reorders its rows leaves as they were; "" if it moves all."""
    call = None if outcome.comparison is None else outcome.comparison.other.call
    if call is None or len(call.steps) < 2 or call.steps[1].change_cache is None:
        return ""
    cache = _first_cache(subject, call)
    before = {name: tensor.clone() for name, tensor in _tensors(cache, call.batch)}
    behind = dict(_tensors(call.steps[1].change_cache(cache), call.batch))
    unmoved = [
        name
        for name, tensor in before.items()
        if name in behind and torch.equal(tensor, behind[name]) and not torch.equal(tensor, tensor.flip(0))
    ]
    return " and ".join(dict.fromkeys(name.rpartition(".")[2] for name in unmoved))


def find_kept(subject: Subject, call: Call) -> str:
    """Names of tensors with the rows of a batch that a module keeps in itself behind a call, with the module's name."""
    subject.run(call)
    for name, module in () if subject.module is None else subject.module.named_modules():
        kept = [word for word, value in vars(module).items() if isinstance(value, Tensor) and _has_rows(value, call)]
        if kept:
            return f"{' and '.join(kept)} of {name}"
    return ""


def _has_rows(value: Tensor, call: Call) -> bool:
    return value.dim() > 1 and value.shape[0] == call.batch and value.is_floating_point()


def _first_cache(subject: Subject, call: Call) -> Any:
    """The cache that the first step of a call returns."""
    with subject.running(call):
        arguments = {name: subject.prepare(value) for name, value in call.steps[0].arguments.items()}
        return read_cache(subject.function(**arguments))


def _tensors(value: Any, rows: int, name: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, Tensor]]:
    """The tensors of numbers (rows, ..) in an object, with the path of attributes to each; items have no name."""
    if isinstance(value, Tensor):
        if value.dim() > 1 and value.shape[0] == rows and value.is_floating_point():
            yield name, value
    elif isinstance(value, nn.Module) or depth == 0:
        return
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _tensors(part, rows, f"{key} {name}", depth - 1)
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            yield from _tensors(part, rows, f"{number} {name}", depth - 1)
    elif hasattr(value, "__dict__"):
        for word, part in vars(value).items():
            yield from _tensors(part, rows, f"{name}.{word}", depth - 1)
