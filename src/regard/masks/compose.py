"""Combinations of masks by ``&``, ``|`` and ``~``: the same three-valued logic for cells and for tiles."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar, NamedTuple, Self, final

import torch
from jaxtyping import Int, Int8
from torch import Tensor

from regard.contract import Frame
from regard.errors import ShapeError
from regard.masks.base import Mask, Rule
from regard.masks.kernel_mask import KernelMask
from regard.masks.tile_rows import TileRows
from regard.masks.tiles import FULL, TileGrid


@final
class _Operations(NamedTuple):
    """How two masks are combined: whether a cell is visible, codes of tiles, and bits of cells."""

    cells: Callable[[Tensor, Tensor], Tensor]
    codes: Callable[[Tensor, Tensor], Tensor]
    bits: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False, repr=False)
class _Combination(Mask, ABC):
    """A mask of several ``parts``, combined cell by cell, tile by tile and bit by bit."""

    parts: tuple[Mask, ...]

    symbol: ClassVar[str]
    operations: ClassVar[_Operations]

    @classmethod
    def join(cls, left: Mask, right: Mask) -> Self:
        """Combine two masks, flattening nested combinations of the same kind."""
        return cls(tuple(part for mask in (left, right) for part in (mask.parts if isinstance(mask, cls) else (mask,))))

    def __post_init__(self) -> None:
        _set_axes_from_parts(self, self.parts)

    def __repr__(self) -> str:
        parts = (f"({part!r})" if isinstance(part, _Combination) else repr(part) for part in self.parts)
        return f" {self.symbol} ".join(parts)

    def mask_mod(self, queries: int, keys: int, *, device: torch.device | str | None = None) -> Rule:
        """Return the rule for these lengths, with its tensors on ``device``."""
        rules = [part.mask_mod(queries, keys, device=device) for part in self.parts]

        def rule(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return reduce(self.operations.cells, [part(batch, head, query, key) for part in rules])

        return rule

    def classify(self, grid: TileGrid) -> Int8[Tensor, "#batch #heads query_tiles key_tiles"]:
        """Classify each tile from the codes of the parts: EMPTY is the least, FULL the largest."""
        return reduce(self.operations.codes, [part.classify(grid) for part in self.parts])

    def tile_bits(self, rows: TileRows) -> Int[Tensor, "#tiles #tile #words"]:
        """Combine the bits of the parts."""
        return reduce(self.operations.bits, [part.tile_bits(rows) for part in self.parts])


@final
@dataclass(frozen=True, eq=False, repr=False)
class And(_Combination):
    """``a & b``: a query may attend to a key if every part allows it."""

    symbol = "&"
    operations = _Operations(torch.logical_and, torch.minimum, torch.bitwise_and)

    def band(self, frame: Frame) -> tuple[int | None, int | None] | None:
        """The intersection of the parts' bands if all are bands, else None."""
        lows: list[int] = []
        highs: list[int] = []
        for part in self.parts:
            band = part.band(frame)
            if band is None:
                return None
            lows += [] if band[0] is None else [band[0]]
            highs += [] if band[1] is None else [band[1]]
        return max(lows, default=None), min(highs, default=None)

    def lower(self, frame: Frame) -> KernelMask:
        """Intersect the parts; parts that need tiles share one tile map, which is cached between calls."""
        whole, rest = KernelMask(), []
        for place, part in enumerate(self.parts):
            lowered = part.lower_without_tiles(frame)
            if lowered is None:
                rest.append(place)
            else:
                whole = whole & lowered
        if len(rest) == len(self.parts):
            return super().lower(frame)
        if not rest:
            return whole
        if len(rest) == 1:
            return whole & self.parts[rest[0]].lower(frame)
        joined = And(tuple(self.parts[place] for place in rest))
        return whole & self.lower_to_tiles(frame, joined, tuple(rest))


@final
@dataclass(frozen=True, eq=False, repr=False)
class Or(_Combination):
    """``a | b``: a query may attend to a key if any part allows it."""

    symbol = "|"
    operations = _Operations(torch.logical_or, torch.maximum, torch.bitwise_or)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Not(Mask):
    """``~a``: a query may attend to a key if the part forbids it."""

    part: Mask

    def __post_init__(self) -> None:
        _set_axes_from_parts(self, (self.part,))

    def __repr__(self) -> str:
        return f"~({self.part!r})" if isinstance(self.part, And | Or) else f"~{self.part!r}"

    def mask_mod(self, queries: int, keys: int, *, device: torch.device | str | None = None) -> Rule:
        """Return the rule for these lengths, with its tensors on ``device``."""
        rule = self.part.mask_mod(queries, keys, device=device)
        return lambda batch, head, query, key: ~rule(batch, head, query, key)

    def classify(self, grid: TileGrid) -> Int8[Tensor, "#batch #heads query_tiles key_tiles"]:
        """Classify each tile by swapping FULL and EMPTY of the part."""
        return FULL - self.part.classify(grid)

    def tile_bits(self, rows: TileRows) -> Int[Tensor, "#tiles #tile #words"]:
        """Set the bits that the part does not set."""
        return ~self.part.tile_bits(rows)


def _set_axes_from_parts(mask: Mask, parts: tuple[Mask, ...]) -> None:
    """Set ``batch``, ``heads`` and ``depends_on_query`` from the parts. Raises ShapeError if their sizes differ."""
    for axis in ("batch", "heads"):
        sizes: list[int] = []  # not a set: a symbolic size of a trace has no hash
        for size in (getattr(part, axis) for part in parts):
            if size is not None and size != 1 and all(size != other for other in sizes):
                sizes.append(size)
        if len(sizes) > 1:
            raise ShapeError(
                f"masks for different {axis} sizes cannot be combined",
                expected="one size, or masks that are the same for all",
                got=", ".join(f"{part!r} for {getattr(part, axis)}" for part in parts if getattr(part, axis)),
                do="build both masks from the same batch",
            )
        object.__setattr__(mask, axis, sizes.pop() if sizes else None)
    object.__setattr__(mask, "depends_on_query", any(part.depends_on_query for part in parts))
