"""``KernelMask``: a mask in the form that kernels read.

Query i of batch entry b and head h may attend to key j if every part that is not None allows it:

    low <= j - i <= high                   the band, counted in indices
    start[b] <= j < stop[b]                the interval
    tiles                                  the tile map: which tiles are empty, full or partial (``masks.tiles``)
    dense[b, h, i, j]                      cells

Kernels read this structure only, so that they do not depend on mask classes, nor masks on kernels. Band and interval
are a few numbers, and a dense tensor is the caller's own, so only a tile map takes time to build.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.contract import Frame

if TYPE_CHECKING:
    from regard.masks.tiles import TileMap

Part = TypeVar("Part")


@final
@dataclass(frozen=True, eq=False)
class KernelMask:
    """Parts that must all allow a cell; None is an absent part. A batch size of 1 stands for every entry."""

    low: int | None = None
    high: int | None = None
    start: Int[Tensor, " batch"] | None = None
    stop: Int[Tensor, " batch"] | None = None
    tiles: TileMap | None = None
    dense: Bool[Tensor, "#batch #heads #queries #keys"] | None = None

    def __and__(self, other: KernelMask) -> KernelMask:
        """Intersect two masks. At most one of them has a tile map: a mask combines its parts before it builds one."""
        assert self.tiles is None or other.tiles is None
        return KernelMask(
            low=_intersect(max, self.low, other.low),
            high=_intersect(min, self.high, other.high),
            start=_intersect(torch.maximum, self.start, other.start),
            stop=_intersect(torch.minimum, self.stop, other.stop),
            tiles=other.tiles if self.tiles is None else self.tiles,
            dense=_intersect(torch.logical_and, self.dense, other.dense),
        )

    def cells(self, frame: Frame) -> Bool[Tensor, "#batch #heads queries keys"]:
        """Intersect all parts into a dense bool tensor, for checks."""
        query, key = torch.arange(frame.queries)[:, None], torch.arange(frame.keys)
        allowed = torch.ones(1, 1, frame.queries, frame.keys, dtype=torch.bool)
        if self.low is not None:
            allowed = allowed & (key - query >= self.low)
        if self.high is not None:
            allowed = allowed & (key - query <= self.high)
        if self.start is not None:
            allowed = allowed & (key >= self.start[:, None, None, None])
        if self.stop is not None:
            allowed = allowed & (key < self.stop[:, None, None, None])
        if self.tiles is not None:
            allowed = allowed & self.tiles.dense()
        return allowed if self.dense is None else allowed & self.dense


def _intersect(meet: Callable[[Part, Part], Part], first: Part | None, other: Part | None) -> Part | None:
    """Intersect two parts of one kind by ``meet``; None allows everything."""
    if first is None or other is None:
        return other if first is None else first
    return meet(first, other)
