"""Which layers of a model share a page of keys and values, and from which layers' pages old tokens can be freed.

    page    (layers_per_page * key_heads, page_size, head_dim)      page_size tokens of a sequence, in a group of layers

Layers whose window has the same size form groups of equal numbers of layers; all pages have the same size, so a page
that one group frees serves any other. Without windows there is one group, of all layers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, final


@final
@dataclass(frozen=True)
class PageLayout:
    """For each layer its ``group`` and its ``slot`` among the ``layers_per_page`` of this group; the groups' windows.

    A query of a group with a window of n attends to the last n tokens, its own included; None is all tokens.
    """

    group: tuple[int, ...]
    slot: tuple[int, ...]
    windows: tuple[int | None, ...]
    layers_per_page: int

    @classmethod
    def of(cls, windows: Sequence[int | None]) -> Self:
        """The layout of a model with these windows, one for each layer."""
        counts = Counter(windows)
        size = math.gcd(*counts.values())
        groups: list[int | None] = [window for window, count in counts.items() for _ in range(count // size)]
        numbers = {window: [n for n, size in enumerate(groups) if size == window] for window in counts}
        placed = Counter[int | None]()
        group, slot = [], []
        for window in windows:
            group.append(numbers[window][placed[window] // size])
            slot.append(placed[window] % size)
            placed[window] += 1
        return cls(tuple(group), tuple(slot), tuple(groups), size)

    @property
    def num_groups(self) -> int:
        """The number of groups: of pages that a sequence has for the same tokens."""
        return len(self.windows)

    @property
    def has_windows(self) -> bool:
        """Whether old tokens can be freed in some group."""
        return any(window is not None for window in self.windows)
