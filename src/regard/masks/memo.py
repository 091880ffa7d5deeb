"""``Memo``: a small cache of results that a mask has derived from itself.

A mask is a value, so its cache must not affect results or thread safety, and must not grow without bound.

    results    only tensors that any later call may use are cached: none of inference mode, none of a trace
    threads    the entries are one immutable tuple, replaced as a whole: no lock that a forked child might find held
    memory     the latest 8 results, and at most 64 MiB of results besides the latest
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar, final

import torch
from torch import Tensor

Result = TypeVar("Result")

MAX_RESULTS = 8  # each decoding step has new lengths, so results would pile up
MAX_BYTES = 64 << 20  # besides the latest result


@final
class Memo:
    """Cache of the latest results of pure functions, by a key that names the function and its arguments."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: tuple[tuple[Hashable, Any], ...] = ()

    def __len__(self) -> int:
        return len(self._entries)

    def get_or_compute(self, key: Hashable, make: Callable[[], Result]) -> Result:
        """Return the cached result of ``key``, or compute it by ``make`` and cache it.

        Threads that miss at the same time each compute it, and one of the equal results stays in the cache.
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
    """List the tensors of a result: the result itself, its fields, or fields of these."""
    if isinstance(result, Tensor):
        return [result]
    fields = list(vars(result).values())
    nested = [part for field in fields if hasattr(field, "__dict__") for part in vars(field).values()]
    return [part for part in (*fields, *nested) if isinstance(part, Tensor)]


def _is_reusable(tensor: Tensor) -> bool:
    """Whether any later call may use ``tensor``: no subclass (as in a trace), not of inference mode or torch.func."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return type(tensor) is Tensor and not wrapped and not tensor.is_inference()


def _evict(entries: tuple[tuple[Hashable, Any], ...]) -> tuple[tuple[Hashable, Any], ...]:
    """Keep the latest entry, and of the older ones as many as ``MAX_RESULTS`` and ``MAX_BYTES`` allow."""
    latest, *older = entries[:MAX_RESULTS]
    kept, left = [latest], MAX_BYTES
    for entry in older:
        left -= sum(tensor.nbytes for tensor in result_tensors(entry[1]))
        if left < 0:
            break
        kept.append(entry)
    return tuple(kept)
