"""``Memo``: what a mask has worked out from itself, kept for the calls to come.

A mask is a value, and what it keeps must not show: neither in results, nor in who may use it, nor for ever in memory.

    results    only tensors that any later call may use are kept: none of inference mode, none of a trace
    threads    the entries are one immutable tuple, exchanged as a whole: no lock, which a forked child might find held
    memory     the latest 8 results, and of the older ones no more than 64 MiB together
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar, final

import torch
from torch import Tensor

Result = TypeVar("Result")

MAX_RESULTS = 8  # a step of decoding has lengths of its own, so results would pile up
MAX_BYTES = 64 << 20  # besides the latest result


@final
class Memo:
    """The latest results of pure functions, by a key that says which function of what."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: tuple[tuple[Hashable, Any], ...] = ()

    def __len__(self) -> int:
        return len(self._entries)

    def get_or_compute(self, key: Hashable, make: Callable[[], Result]) -> Result:
        """The result kept under ``key``; else that of ``make``, which is then kept.

        Threads that miss at the same time make it several times, and any of the equal results is kept.
        """
        entries = self._entries
        for place, entry in enumerate(entries):
            if entry[0] == key:
                if place:
                    self._entries = (entry, *entries[:place], *entries[place + 1 :])
                result: Result = entry[1]
                return result
        with torch.inference_mode(False):
            result = make()
        if all(map(_is_reusable, result_tensors(result))):
            self._entries = _evict(((key, result), *(entry for entry in self._entries if entry[0] != key)))
        return result


def result_tensors(result: object) -> Iterable[Tensor]:
    """The tensors of a result: itself, or its fields."""
    parts = [result] if isinstance(result, Tensor) else vars(result).values()
    return [part for part in parts if isinstance(part, Tensor)]


def _is_reusable(tensor: Tensor) -> bool:
    """Whether any later call may use it: no subclass (which a trace makes), none of inference mode or torch.func."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return type(tensor) is Tensor and not wrapped and not tensor.is_inference()


def _evict(entries: tuple[tuple[Hashable, Any], ...]) -> tuple[tuple[Hashable, Any], ...]:
    """The latest, and of those before it as many as may be kept."""
    latest, *older = entries[:MAX_RESULTS]
    kept, left = [latest], MAX_BYTES
    for entry in older:
        left -= sum(tensor.nbytes for tensor in result_tensors(entry[1]))
        if left < 0:
            break
        kept.append(entry)
    return tuple(kept)
