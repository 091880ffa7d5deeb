"""Masks that depend only on the distance between a key and a query's position: causal and window.

    causal          key <= position(query)
    window(l, r)    -l <= key - position(query) <= r           None: unbounded on that side

Causal: Vaswani et al. 2017, section 3.2.3. Window: Child et al. 2019; Beltagy et al. 2020 (Longformer), section 3.1.

``align="end"`` (the default): the last query stands on the last key, ``position(i) = i + keys - queries``, which
is right with a cache. ``align="start"``: query i stands on key i, as in SDPA's ``is_causal``.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Literal, final

import torch
from jaxtyping import Int8
from torch import Tensor

from regard.contract import Frame
from regard.errors import LARGEST_COUNT, OptionError, check_choice, short_repr
from regard.masks.base import Mask, Rule, make_frame
from regard.masks.tiles import TileGrid

Align = Literal["end", "start"]


@final
@dataclass(frozen=True, eq=False, repr=False)
class Band(Mask):
    """``-left <= key - position(query) <= right``; None is unbounded."""

    left: int | None
    right: int | None
    align: str = "end"

    def __post_init__(self) -> None:
        check_choice("alignment", self.align, ("end", "start"))
        for side in ("left", "right"):
            size = getattr(self, side)
            if size is not None and (isinstance(size, bool) or not isinstance(size, Integral) or int(size) < 0):
                raise OptionError(
                    f"a window's {side} side is a number of tokens",
                    expected="an integer of 0 or more, or None for unbounded",
                    got=short_repr(size),
                    do="count the tokens a query may see on that side, itself left out",
                )
            # No text is that long, and bounds are 64 bits wide, in which a position and a larger side do not add up.
            object.__setattr__(self, side, None if size is None or int(size) >= LARGEST_COUNT else int(size))

    def __repr__(self) -> str:
        align = "" if self.align == "end" else f"align={self.align!r}"
        if (self.left, self.right) == (None, 0):
            return f"causal({align})"
        return f"window({self.left}, {self.right}{', ' + align if align else ''})"

    def band(self, frame: Frame) -> tuple[int | None, int | None]:
        """Bounds of key - query, as indices."""
        offset = frame.offset if self.align == "end" else 0
        low = None if self.left is None else offset - self.left
        high = None if self.right is None else offset + self.right
        return low, high

    def check_lengths(self, queries: int, keys: int) -> None:
        """Any lengths will do."""

    def mask_mod(self, queries: int, keys: int, *, device: torch.device | str | None = None) -> Rule:
        """The rule for these lengths."""
        del device
        low, high = self.band(make_frame(queries, keys))

        def rule(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            del batch, head
            distance = key - query
            if low is not None and high is not None:
                return (distance >= low) & (distance <= high)
            if low is not None:
                return distance >= low
            if high is not None:
                return distance <= high
            return torch.ones_like(distance, dtype=torch.bool)

        return rule

    def classify(self, grid: TileGrid) -> Int8[Tensor, "#batch #heads query_tiles key_tiles"]:
        """From the smallest and largest distance in a tile."""
        low, high = self.band(grid.frame)
        return grid.classify_interval(grid.first_key - grid.last_query, grid.last_key - grid.first_query, low, high)


def causal(*, align: Align = "end") -> Mask:
    """Each query sees the keys up to its own position. Vaswani et al. 2017, section 3.2.3.

    ``align="end"`` puts the last query on the last key, as decoding with a cache needs; ``"start"`` puts query 0
    on key 0.
    """
    return Band(None, 0, align)


def window(left: int | None, right: int | None, *, align: Align = "end") -> Mask:
    """Each query sees ``left`` keys before its position, itself, and ``right`` after; None is unbounded."""
    return Band(left, right, align)
