"""Combinations of masks by ``&``, ``|`` and ``~``: the same three-valued logic for cells and for tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import final

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
@dataclass(frozen=True, eq=False, repr=False)
class And(Mask):
    """``a & b``: a query may attend to a key if every part allows it."""

    parts: tuple[Mask, ...]

    @classmethod
    def join(cls, left: Mask, right: Mask) -> And:
        """Combine two masks, flattening nested combinations of the same kind."""
        return cls(_flatten(cls, left) + _flatten(cls, right))

    def __post_init__(self) -> None:
        _set_axes_from_parts(self, self.parts)

    def __repr__(self) -> str:
        return " & ".join(f"({part!r})" if isinstance(part, Or) else repr(part) for part in self.parts)

    def mask_mod(self, queries: int, keys: int, *, device: torch.device | str | None = None) -> Rule:
        """Return the rule for these lengths, with its tensors on ``device``."""
        return _join(torch.logical_and, [part.mask_mod(queries, keys, device=device) for part in self.parts])

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

    def classify(self, grid: TileGrid) -> Int8[Tensor, "#batch #heads query_tiles key_tiles"]:
        """Classify each tile by the minimum of the parts' codes."""
        return reduce(torch.minimum, [part.classify(grid) for part in self.parts])

    def tile_bits(self, rows: TileRows) -> Int[Tensor, "#tiles #tile #words"]:
        """Set the bits that all parts set."""
        return reduce(torch.bitwise_and, [part.tile_bits(rows) for part in self.parts])


@final
@dataclass(frozen=True, eq=False, repr=False)
class Or(Mask):
    """``a | b``: a query may attend to a key if any part allows it."""

    parts: tuple[Mask, ...]

    @classmethod
    def join(cls, left: Mask, right: Mask) -> Or:
        """Combine two masks, flattening nested combinations of the same kind."""
        return cls(_flatten(cls, left) + _flatten(cls, right))

    def __post_init__(self) -> None:
        _set_axes_from_parts(self, self.parts)

    def __repr__(self) -> str:
        return " | ".join(f"({part!r})" if isinstance(part, And) else repr(part) for part in self.parts)

    def mask_mod(self, queries: int, keys: int, *, device: torch.device | str | None = None) -> Rule:
        """Return the rule for these lengths, with its tensors on ``device``."""
        return _join(torch.logical_or, [part.mask_mod(queries, keys, device=device) for part in self.parts])

    def classify(self, grid: TileGrid) -> Int8[Tensor, "#batch #heads query_tiles key_tiles"]:
        """Classify each tile by the maximum of the parts' codes."""
        return reduce(torch.maximum, [part.classify(grid) for part in self.parts])

    def tile_bits(self, rows: TileRows) -> Int[Tensor, "#tiles #tile #words"]:
        """Set the bits that any part sets."""
        return reduce(torch.bitwise_or, [part.tile_bits(rows) for part in self.parts])


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


def _flatten(kind: type[And] | type[Or], mask: Mask) -> tuple[Mask, ...]:
    return mask.parts if isinstance(mask, And | Or) and isinstance(mask, kind) else (mask,)


def _join(operation: Callable[[Tensor, Tensor], Tensor], rules: list[Rule]) -> Rule:
    def rule(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return reduce(operation, [part(batch, head, query, key) for part in rules])

    return rule


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
