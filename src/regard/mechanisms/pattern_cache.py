"""``PatternCache``: masks that a sparse mechanism makes for its calls, kept so that kernels can reuse their tile maps.

A mask caches its own tile maps (``masks.memo``), so a pattern that recurs is made once. The mask of a call is joined
with it part by part: bands and intervals, such as causal and padding masks, then need no tile map. What was joined with
the latest mask is kept too, since models are called with one mask again and again. Results do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import final

from regard.masks.base import Mask
from regard.masks.compose import And
from regard.masks.memo import Memo
from regard.tensors import is_traced

_MAX_JOINED = 8


@final
class PatternCache:
    """The latest patterns by name, and those that were joined with the latest mask of a call."""

    def __init__(self) -> None:
        self._patterns = Memo()
        self._joined: tuple[Mask | None, tuple[tuple[Mask, Mask], ...]] = (None, ())

    def get(self, name: Hashable, make: Callable[[], Mask]) -> Mask:
        """Return the pattern of that name, which determines it, or make it."""
        return make() if is_traced() else self._patterns.get_or_compute(name, make)

    def join(self, pattern: Mask, mask: Mask | None, change: Callable[[Mask], Mask] = lambda part: part) -> Mask:
        """Return the pattern where the mask of a call allows it.

        ``change`` converts each part of the mask, and is determined by the pattern.
        """
        if mask is None:
            return pattern
        if is_traced():
            return _join(pattern, mask, change)
        latest, known = self._joined
        known = known if latest is mask else ()
        both = next((both for known_pattern, both in known if known_pattern is pattern), None)
        if both is None:
            both = _join(pattern, mask, change)
            self._joined = (mask, (*known[1 - _MAX_JOINED :], (pattern, both)))
        return both

    def __getstate__(self) -> dict[str, object]:
        """Pickle and copy without the cached patterns."""
        return {}

    def __setstate__(self, state: object) -> None:
        """Start with nothing kept."""
        del state
        self._patterns, self._joined = Memo(), (None, ())


def _join(pattern: Mask, mask: Mask, change: Callable[[Mask], Mask]) -> Mask:
    """Join the pattern, as one part, with the parts of a mask."""
    return And((pattern, *(change(part) for part in (mask.parts if isinstance(mask, And) else (mask,)))))
