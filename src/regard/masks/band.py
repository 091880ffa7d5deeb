"""Causal and sliding-window masks, which depend only on the distance between a key and the query's position.

    causal          key <= position(query)
    window(l, r)    -l <= key - position(query) <= r           None: unbounded on that side

With a dilation, the window has gaps (``masks.dilated_window``).

Causal: Vaswani et al. 2017, section 3.2.3. Window: Child et al. 2019; Beltagy et al. 2020 (Longformer), section 3.1.

``align="end"`` (the default) aligns the last query with the last key, ``position(i) = i + keys - queries``, which
is right with a cache. ``align="start"`` aligns query i with key i, as SDPA's ``is_causal`` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, final

import torch
from jaxtyping import Int, Int8
from torch import Tensor

from regard.arguments import explain_arguments
from regard.contract import Frame
from regard.errors import LARGEST_COUNT, OptionError, check_choice, check_count, short_repr
from regard.masks.base import Mask, Rule, make_frame
from regard.masks.dilated_window import DilatedWindow
from regard.masks.tile_rows import TileRows
from regard.masks.tiles import TileGrid

Align = Literal["end", "start"]

_MAX_DILATION = 2**20  # beyond any text, so that distances fit into 64 bits


@final
@dataclass(frozen=True, eq=False, repr=False)
class Band(Mask):
    """Band mask: ``-left <= key - position(query) <= right``; None is unbounded."""

    left: int | None
    right: int | None
    align: str = "end"

    def __post_init__(self) -> None:
        check_choice("alignment", self.align, ("end", "start"))
        for side in ("left", "right"):
            size = getattr(self, side)
            if size is not None and (isinstance(size, bool) or not isinstance(size, Integral) or int(size) < 0):
                raise OptionError(
                    f"the {side} side of a window must be a number of tokens",
                    expected="an integer of 0 or more, or None for unbounded",
                    got=short_repr(size),
                    do="count the tokens that a query may attend to on that side, without itself",
                )
            # Treat huge sides as unbounded: no text is that long, and side + position would overflow 64 bits.
            object.__setattr__(self, side, None if size is None or int(size) >= LARGEST_COUNT else int(size))

    def __repr__(self) -> str:
        align = "" if self.align == "end" else f"align={self.align!r}"
        if (self.left, self.right) == (None, 0):
            return f"causal({align})"
        return f"window({self.left}, {self.right}{', ' + align if align else ''})"

    def band(self, frame: Frame) -> tuple[int | None, int | None]:
        """Return the lower and upper bound of key index - query index; None is unbounded."""
        offset = frame.offset if self.align == "end" else 0
        low = None if self.left is None else offset - self.left
        high = None if self.right is None else offset + self.right
        return low, high

    def check_lengths(self, queries: int, keys: int) -> None:
        """Accept any lengths: the mask is not made for particular ones."""

    def mask_mod(self, queries: int, keys: int, *, device: torch.device | str | None = None) -> Rule:
        """Return the rule for these lengths, with its tensors on ``device``."""
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
        """Classify each tile from its smallest and largest distance."""
        low, high = self.band(grid.frame)
        return grid.classify_interval(grid.first_key - grid.last_query, grid.last_key - grid.first_query, low, high)

    def tile_bits(self, rows: TileRows) -> Int[Tensor, "tiles tile words"]:
        """Set the bits of each query's range of keys."""
        low, high = self.band(rows.frame)
        query, keys = rows.query, rows.frame.keys
        return rows.between(0 if low is None else query + low, keys if high is None else query + high + 1)


@explain_arguments
def causal(*, align: Align = "end") -> Mask:
    """Causal mask: each query may attend to keys up to its own position. Vaswani et al. 2017, section 3.2.3.

    ``align="end"`` aligns the last query with the last key, as decoding with a cache needs; ``"start"`` aligns query 0
    with key 0.
    """
    return Band(None, 0, align)


@explain_arguments
def window(left: int | None, right: int | None, *, dilation: int | Sequence[int] = 1, align: Align = "end") -> Mask:
    """Sliding-window mask: each query may attend to the key at its position, ``left`` keys before and ``right`` after.

    None is unbounded on that side; ``align`` as for ``causal``. With a ``dilation``, one number or one for each head,
    only every ``dilation``-th key counts, so the window reaches that many times as far.
    """
    band = Band(left, right, align)
    dilations = check_dilations(dilation)
    return band if set(dilations) == {1} else DilatedWindow(band.left, band.right, dilations, align)


def check_dilations(dilation: int | Sequence[int]) -> tuple[int, ...]:
    """Return the dilations of the heads, a single one if they are equal. Raises OptionError if they are invalid."""
    numbers = tuple(dilation) if isinstance(dilation, list | tuple) else (dilation,)
    if not numbers:
        raise OptionError(
            "wrong dilation",
            expected="an integer of 1 or more, or one for each head",
            got=short_repr(dilation),
            do="for example dilation=2, or dilation=[1, 1, 2, 2]",
        )
    for number in numbers:
        check_count("dilation", number, maximum=_MAX_DILATION)
    whole = tuple(int(number) for number in numbers)
    return whole[:1] if len(set(whole)) == 1 else whole
