"""``Mask``: who may attend to whom, as a small immutable value that describes itself.

One polarity: True means "may attend". A mask is one rule, ``mask_mod``, a function of the batch, head, query
and key index; every other form follows from it and is built only when asked for:

    dense(queries, keys)      bool, broadcastable to (batch, heads, queries, keys)
    tiles(queries, keys)      which tiles of the score matrix are empty, full or partial (``masks.tiles``)
    mask_mod(queries, keys)   the rule itself, in the form FlexAttention takes
    lower(frame)              the cheapest of these forms for a kernel (``masks.lowered``)

Masks join by ``&``, ``|`` and ``~``. A mask of your own is a subclass with a ``mask_mod``; where it can tell empty
and full tiles apart without looking at each cell it also overrides ``classify``, and is then as fast as the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor

from regard.contract import Frame
from regard.errors import DtypeError, OptionError, ShapeError
from regard.masks.lowered import Lowered

if TYPE_CHECKING:
    from regard.masks.tiles import TileGrid, TileMap

Rule: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch, head, query, key) index tensors that broadcast together -> bool of their common shape."""


_TILE_MAPS_KEPT = 8  # a step of decoding has lengths of its own, so they would pile up
_FEW_QUERIES = 8  # for these a tile map takes longer to make than it saves
_ONE_TILE = 64  # and in one tile there is nothing to skip


class Mask(ABC):
    """Who may attend to whom. True means "may attend"."""

    batch: int | None = None
    """Number of batch entries the mask tells apart; None where it is the same for all."""
    heads: int | None = None
    """Number of heads the mask tells apart; None where it is the same for all."""
    depends_on_query: bool = True
    """False where every query may attend to the same keys, as with padding."""

    @abstractmethod
    def mask_mod(self, queries: int, keys: int, *, device: torch.device | str | None = None) -> Rule:
        """The rule for these lengths, with its tensors on ``device``.

        Raises ShapeError where the mask was made for other lengths.
        """

    def band(self, frame: Frame) -> tuple[int | None, int | None] | None:
        """``(low, high)`` if the mask is exactly ``low <= key - query <= high`` (None: unbounded), else None."""
        del frame
        return None

    def lower(self, frame: Frame) -> Lowered:
        """The mask as a kernel takes it: by a band, an interval or a dense tensor if it is one, else by its tiles.

        Cells stand in for tiles where they are few, and where torch traces, since a tile map depends on data.
        """
        lowered = self.lower_without_tiles(frame)
        if lowered is not None:
            return lowered
        few = frame.queries <= _FEW_QUERIES or max(frame.queries, frame.keys) <= _ONE_TILE
        if few or torch.compiler.is_compiling():
            return Lowered(dense=self.dense(frame.queries, frame.keys))
        return Lowered(tiles=self.tiles(frame.queries, frame.keys))

    def lower_without_tiles(self, frame: Frame) -> Lowered | None:
        """The mask as a kernel takes it if that costs nothing to make, else None."""
        band = self.band(frame)
        return None if band is None else Lowered(low=band[0], high=band[1])

    def classify(self, grid: TileGrid) -> Int8[Tensor, "#batch #heads query_tiles key_tiles"]:
        """For each tile EMPTY, PARTIAL or FULL. PARTIAL may also mean "not known": such tiles are looked into."""
        return grid.partial()

    def dense(
        self,
        queries: int,
        keys: int,
        *,
        device: torch.device | str | None = None,
        rows: Int[Tensor, " rows"] | None = None,
    ) -> Bool[Tensor, "#batch #heads #rows #keys"]:
        """The mask as a bool tensor that broadcasts to (batch, heads, queries, keys).

        ``rows`` asks for some queries only, by index.
        """
        query = torch.arange(queries, device=device) if rows is None else torch.as_tensor(rows, device=device)
        batch = torch.arange(1 if self.batch is None else self.batch, device=device)
        head = torch.arange(1 if self.heads is None else self.heads, device=device)
        key = torch.arange(keys, device=device)
        rule = self.mask_mod(queries, keys, device=device)
        if not self.depends_on_query:
            query = query[:1]
        allowed = rule(batch[:, None, None, None], head[:, None, None], query[:, None], key)
        if allowed.dtype != torch.bool:
            raise DtypeError(
                f"the rule of {self!r} gives no bool",
                expected="torch.bool, True where a query may attend",
                got=str(allowed.dtype),
                do="compare in mask_mod: `tensor != 0`",
            )
        return allowed.reshape((1,) * (4 - allowed.dim()) + allowed.shape)

    def tiles(self, queries: int, keys: int, *, tile: int = 64) -> TileMap:
        """The block structure: the tiles that are not empty, row by row; kept for the last few pairs of lengths."""
        from regard.masks.tiles import build_tile_map

        known, lengths = self._tile_maps, (queries, keys, tile)
        if lengths not in known:
            if len(known) >= _TILE_MAPS_KEPT:
                known.pop(next(iter(known)))
            known[lengths] = build_tile_map(self, Frame(queries, keys), tile)
        return known[lengths]

    @cached_property
    def _tile_maps(self) -> dict[tuple[int, int, int], TileMap]:
        return {}

    def __getstate__(self) -> dict[str, object]:
        """Without what can be computed again."""
        cached = {
            name
            for kind in type(self).__mro__
            for name, part in vars(kind).items()
            if isinstance(part, cached_property)
        }
        return {name: part for name, part in vars(self).items() if name not in cached}

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        """Raise ShapeError unless the mask fits tensors of these sizes."""
        if self.batch is not None and self.batch != 1 and self.batch != batch:
            raise ShapeError(
                "mask was made for another batch size",
                expected=f"a mask for a batch of {batch} (or one for all)",
                got=f"{self!r} for a batch of {self.batch}",
                do="build the mask from the same batch as the query",
            )
        if self.heads is not None and self.heads != 1 and self.heads != heads:
            raise ShapeError(
                "mask was made for another number of heads",
                expected=f"a mask for {heads} heads (or one for all)",
                got=f"{self!r} for {self.heads} heads",
                do="give the mask one entry a query head, or 1 for all heads",
            )
        self.check_lengths(queries, keys)

    def check_lengths(self, queries: int, keys: int) -> None:
        """Raise ShapeError where the mask was made for other lengths. To be overridden where mask_mod is slow."""
        self.mask_mod(queries, keys)

    def __rand__(self, other: object) -> Mask:
        return _mask(other, "&")

    def __ror__(self, other: object) -> Mask:
        return _mask(other, "|")

    def __and__(self, other: Mask) -> Mask:
        from regard.masks.compose import And

        return And.of(self, _mask(other, "&"))

    def __or__(self, other: Mask) -> Mask:
        from regard.masks.compose import Or

        return Or.of(self, _mask(other, "|"))

    def __invert__(self) -> Mask:
        from regard.masks.compose import Not

        return Not(self)

    def __bool__(self) -> NoReturn:
        raise OptionError(
            "a mask has no truth value",
            expected="masks joined by & | ~",
            got="`and`, `or`, `not`, or `if mask`",
            do="write `causal() & padding(lengths)`, and compare with `mask is None`",
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mask):
            return NotImplemented
        if self is other:
            return True
        return type(self) is type(other) and self._identity is not None and self._identity == other._identity

    def __hash__(self) -> int:
        return hash((type(self), self._identity or id(self)))

    @cached_property
    def _identity(self) -> tuple[object, ...] | None:
        """What makes two masks of a class equal: their fields; None where only being the same object does."""
        names = getattr(type(self), "__dataclass_fields__", None)
        return None if names is None else tuple(_frozen(getattr(self, name)) for name in names)


def _frozen(part: object) -> object:
    """A hashable stand-in for a mask's field, equal where the contents are."""
    if isinstance(part, Tensor):
        return (tuple(part.shape), str(part.dtype), part.detach().cpu().contiguous().numpy().tobytes())
    return part


def _mask(other: object, sign: str) -> Mask:
    if isinstance(other, Mask):
        return other
    raise OptionError(
        f"only masks join by {sign}",
        expected="a mask",
        got=type(other).__name__,
        do="wrap a bool tensor: masks.keep(t) where True may attend, masks.blocked(t) where True may not",
    )
