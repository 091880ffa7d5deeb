"""``Mask``: which queries may attend to which keys, as a small immutable value.

One polarity: True means "may attend". A mask is one rule, ``mask_mod``, a function of the batch, head, query
and key index; every other form follows from it and is built only on request:

    dense(queries, keys)      bool, broadcastable to (batch, heads, queries, keys)
    tiles(queries, keys)      which tiles of the score matrix are empty, full or partial (``masks.tiles``)
    mask_mod(queries, keys)   the rule itself, in the form that FlexAttention takes
    lower(frame)              the cheapest of these forms for a kernel (``masks.kernel_mask``)

Masks are combined by ``&``, ``|`` and ``~``. A mask of your own is a subclass with a ``mask_mod``; if it can tell empty
and full tiles apart without evaluating each cell, it also overrides ``classify``, and is then as fast as the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from functools import cached_property
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor

from regard.contract import Frame, check_length
from regard.errors import DtypeError, OptionError, ShapeError, short_repr
from regard.masks.as_tensor import as_device, as_integers, to_device
from regard.masks.kernel_mask import KernelMask
from regard.masks.memo import Memo
from regard.tensors import has_values, is_traced

if TYPE_CHECKING:
    from regard.masks.device_tiles import DeviceTiles
    from regard.masks.tile_rows import TileRows
    from regard.masks.tiles import TileGrid, TileMap

Rule: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch, head, query, key) index tensors that broadcast together -> bool of their common shape."""

Derived = TypeVar("Derived")

_MAX_DENSE_QUERIES = 8  # up to here a tile map takes longer to build than it saves
TILE_SIZE = 64  # within a single tile there is nothing to skip
CPU = torch.device("cpu")
"""The device on which kernels expect masks."""


class Mask(ABC):
    """Which queries may attend to which keys. True means "may attend"."""

    batch: int | None = None
    """Batch size if the mask differs between batch entries; None if it is the same for all."""
    heads: int | None = None
    """Number of heads if the mask differs between heads; None if it is the same for all."""
    depends_on_query: bool = True
    """False if every query may attend to the same keys, as with padding."""

    __array_ufunc__ = None  # so that NumPy leaves ``array & mask`` to the mask, which raises a helpful error

    @abstractmethod
    def mask_mod(self, queries: int, keys: int, *, device: torch.device | str | None = None) -> Rule:
        """Return the rule for these lengths, with its tensors on ``device``.

        Raises ShapeError if the mask was made for other lengths, and OptionError for invalid lengths.
        """

    def band(self, frame: Frame) -> tuple[int | None, int | None] | None:
        """Return ``(low, high)`` if the mask is exactly ``low <= key - query <= high`` (None: unbounded), else None."""
        del frame
        return None

    def lower(self, frame: Frame) -> KernelMask:
        """Convert the mask for a kernel: to a band, an interval or a dense tensor if it is one, else to tiles.

        A dense tensor replaces tiles if there are few cells, or if torch is tracing, since a tile map depends on data.
        """
        lowered = self.lower_without_tiles(frame)
        return self.lower_to_tiles(frame) if lowered is None else lowered

    def lower_to_tiles(self, frame: Frame, part: Mask | None = None, name: tuple[int, ...] = ()) -> KernelMask:
        """Convert the mask, or its ``part`` called ``name``, to tiles or a dense tensor. Tile maps are cached here."""
        part = self if part is None else part
        # Check for a trace first: comparing symbolic lengths would specialize the trace to their present values.
        if is_traced() or frame.queries <= _MAX_DENSE_QUERIES or max(frame.queries, frame.keys) <= TILE_SIZE:
            return KernelMask(dense=part.dense(frame.queries, frame.keys, device=CPU))
        return KernelMask(tiles=self._get_tile_map(part, name, frame, TILE_SIZE))

    def lower_to_device(self, frame: Frame, device: torch.device) -> DeviceTiles:
        """Convert the mask to lists of tiles in the memory of a device. They are cached here."""
        from regard.masks.device_tiles import move_tiles

        key = ("device tiles", frame.queries, frame.keys, device)
        return self._memo.get_or_compute(
            key, lambda: move_tiles(self._get_tile_map(self, (), frame, TILE_SIZE), device)
        )

    def lower_without_tiles(self, frame: Frame) -> KernelMask | None:
        """Convert the mask for a kernel if that is cheap (no tile map is built), else return None."""
        band = self.band(frame)
        return None if band is None else KernelMask(low=band[0], high=band[1])

    def classify(self, grid: TileGrid) -> Int8[Tensor, "#batch #heads query_tiles key_tiles"]:
        """Classify each tile: EMPTY, PARTIAL or FULL. PARTIAL may also mean "unknown": its cells are then evaluated."""
        return grid.all_partial()

    def tile_bits(self, rows: TileRows) -> Int[Tensor, "#tiles #tile #words"]:
        """Compute which keys the queries of some tiles may attend to, as words of 64 keys; evaluates each cell.

        Override this for a mask whose rows are ranges of keys. Bits of cells that do not exist are ignored.
        """
        return rows.evaluate(self)

    def dense(
        self,
        queries: int,
        keys: int,
        *,
        device: torch.device | str | None = None,
        rows: Int[Tensor, " rows"] | None = None,
    ) -> Bool[Tensor, "#batch #heads #rows #keys"]:
        """Return the mask as a bool tensor that broadcasts to (batch, heads, queries, keys).

        ``rows`` selects queries by index; None is all. ``device`` None is the device of ``rows``, or else of the mask's
        own tensors. Raises OptionError, DtypeError or ShapeError for invalid lengths and rows, DeviceError for an
        invalid device.
        """
        make_frame(queries, keys)
        device = _mask_device(self) if device is None and rows is None else as_device(device)
        query = torch.arange(queries, device=device) if rows is None else _check_rows(rows, queries, device)
        device = query.device if device is None and rows is not None else device
        batch = torch.arange(1 if self.batch is None else self.batch, device=device)
        head = torch.arange(1 if self.heads is None else self.heads, device=device)
        key = torch.arange(keys, device=device)
        rule = self.mask_mod(queries, keys, device=device)
        if not self.depends_on_query:
            query = query[:1]
        allowed = rule(batch[:, None, None, None], head[:, None, None], query[:, None], key)
        check_rule(self, allowed)
        return allowed.reshape((1,) * (4 - allowed.dim()) + allowed.shape)

    def tiles(self, queries: int, keys: int, *, tile: int = 64) -> TileMap:
        """Return the block structure: the tiles that are not empty, row by row.

        Raises OptionError for an invalid length or tile size. A tile map depends on data, so torch cannot trace it.
        """
        return self._get_tile_map(self, (), make_frame(queries, keys), tile).clone()

    def _get_tile_map(self, part: Mask, name: tuple[int, ...], frame: Frame, tile: int) -> TileMap:
        """Get the tile map of this mask or of a part of it, cached in this mask."""
        from regard.masks.tiles import build_tile_map, check_tile

        check_tile(tile)
        if is_traced():
            return build_tile_map(part, frame, tile)
        key = ("tiles", name, frame.queries, frame.keys, tile)
        return self._memo.get_or_compute(key, lambda: build_tile_map(part, frame, tile))

    def get_cached(self, key: Hashable, make: Callable[[], Derived]) -> Derived:
        """Return what ``make`` derives from the mask, cached under ``key``, which names it and its arguments.

        For the forms of a mask that kernels need on a device: each is made once. In a trace, nothing is cached.
        """
        return make() if is_traced() else self._memo.get_or_compute(key, make)

    @property
    def _memo(self) -> Memo:
        """Cache of recently derived results, which does not affect behaviour: see ``masks.memo``."""
        memo: Memo = vars(self).setdefault("_derived", Memo())
        return memo

    def __getstate__(self) -> dict[str, object]:
        """Pickle and copy the fields only, without cached results."""
        cached = {
            name
            for kind in type(self).__mro__
            for name, part in vars(kind).items()
            if isinstance(part, cached_property)
        } | {"_derived"}
        return {name: part for name, part in vars(self).items() if name not in cached}

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        """Raise ShapeError unless the mask fits tensors of these sizes, and OptionError for invalid sizes."""
        if not type(batch) is type(heads) is type(queries) is type(keys) is int:  # the sizes are nearly always ints
            for name, size in (("batch", batch), ("heads", heads), ("queries", queries), ("keys", keys)):
                check_length(name, size)
        if self.batch is not None and self.batch != 1 and self.batch != batch:
            raise ShapeError(
                "mask was made for another batch size",
                expected=f"a mask for a batch of {short_repr(batch)} (or one for all)",
                got=f"{self!r} for a batch of {self.batch}",
                do="build the mask from the same batch as the query",
            )
        if self.heads is not None and self.heads != 1 and self.heads != heads:
            raise ShapeError(
                "mask was made for another number of heads",
                expected=f"a mask for {short_repr(heads)} heads (or one for all)",
                got=f"{self!r} for {self.heads} heads",
                do="give the mask one entry per query head, or 1 for all heads",
            )
        self.check_lengths(queries, keys)

    def check_lengths(self, queries: int, keys: int) -> None:
        """Raise ShapeError if the mask was made for other lengths. Override this if ``mask_mod`` is slow."""
        self.mask_mod(queries, keys)

    def __rand__(self, other: object) -> Mask:
        return _require_mask(other, "&")

    def __ror__(self, other: object) -> Mask:
        return _require_mask(other, "|")

    def __and__(self, other: Mask) -> Mask:
        from regard.masks.compose import And

        return And.join(self, _require_mask(other, "&"))

    def __or__(self, other: Mask) -> Mask:
        from regard.masks.compose import Or

        return Or.join(self, _require_mask(other, "|"))

    def __invert__(self) -> Mask:
        from regard.masks.compose import Not

        return Not(self)

    def __bool__(self) -> NoReturn:
        raise OptionError(
            "a mask has no truth value",
            expected="masks combined by & | ~",
            got="`and`, `or`, `not`, or `if mask`",
            do="write `causal() & padding(lengths)`; to test for None, write `mask is None`",
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mask):
            return NotImplemented
        if self is other:
            return True
        mine = self._identity() if type(self) is type(other) else None
        return mine is not None and all(map(_fields_equal, mine, other._identity() or ()))

    def __hash__(self) -> int:
        identity = self._identity()
        return hash((type(self), id(self) if identity is None else tuple(map(_to_hashable, identity))))

    def _identity(self) -> tuple[object, ...] | None:
        """The fields that are compared for equality; None if a mask equals itself only."""
        fields: dict[str, Any] | None = getattr(type(self), "__dataclass_fields__", None)
        return None if fields is None else tuple(getattr(self, name) for name, field in fields.items() if field.compare)


def check_rule(mask: Mask, allowed: Tensor) -> None:
    """Raise DtypeError unless what the rule of a mask returned is a bool tensor."""
    if allowed.dtype != torch.bool:
        raise DtypeError(
            f"the rule of {mask!r} does not return a bool tensor",
            expected="torch.bool, True where a query may attend",
            got=str(allowed.dtype),
            do="compare in mask_mod: `tensor != 0`",
        )


def make_frame(queries: Any, keys: Any) -> Frame:
    """Make a Frame from checked lengths. Raises OptionError for an invalid length."""
    check_length("queries", queries)
    check_length("keys", keys)
    return Frame(queries, keys)


def _mask_device(mask: Mask) -> torch.device | None:
    """The device of the tensors of a mask, or of its parts; None if it has no tensors."""
    for field in vars(mask).values():
        for part in field if isinstance(field, tuple) else (field,):
            device = part.device if isinstance(part, Tensor) else _mask_device(part) if isinstance(part, Mask) else None
            if device is not None:
                return device
    return None


def _fields_equal(first: object, other: object) -> bool:
    """Whether two fields of masks are equal. Tensors without values are equal only if they are the same object."""
    if not isinstance(first, Tensor) or not isinstance(other, Tensor):
        return bool(first == other)
    if first is other:
        return True
    alike = first.dtype == other.dtype and first.shape == other.shape and has_values(first) and has_values(other)
    return alike and torch.equal(first.cpu(), other.cpu())


def _to_hashable(part: object) -> object:
    """Make a hashable stand-in for a mask's field: equal fields have equal stand-ins."""
    if isinstance(part, Tensor):
        contents = part.detach().cpu().contiguous().numpy().tobytes() if has_values(part) else id(part)
        return (tuple(part.shape), str(part.dtype), contents)
    return part


def _check_rows(rows: Any, queries: int, device: torch.device | None) -> Int[Tensor, " rows"]:
    """Convert ``rows`` to indices of queries. Raises DtypeError, ShapeError or OptionError if they are invalid."""
    expected = f"a list of integers from 0 to {queries - 1}"
    index = rows if isinstance(rows, Tensor) and rows.dtype == torch.long and rows.layout is torch.strided else None
    index = as_integers(rows, "rows", expected, "count queries from 0") if index is None else index
    index = to_device(index, device)
    if index.dim() != 1:
        raise ShapeError(
            "rows is not a list", expected=expected, got=f"shape {tuple(index.shape)}", do="use rows.flatten()"
        )
    if index.is_cpu and has_values(index) and bool(((index < 0) | (index >= queries)).any()):
        raise OptionError(
            "rows names queries that do not exist",
            expected=expected,
            got=f"{int(index.min())} to {int(index.max())}",
            do="count queries from 0",
        )
    return index


def _require_mask(other: object, sign: str) -> Mask:
    if isinstance(other, Mask):
        return other
    name = getattr(other, "__name__", "")
    if isinstance(other, FunctionType) and other.__module__.startswith("regard.masks"):
        raise OptionError(
            f"only masks can be combined by {sign}",
            expected="a mask",
            got=f"the function {name}",
            do="call it: masks.causal()" if name == "causal" else f"call it: masks.{name}(...)",
        )
    raise OptionError(
        f"only masks can be combined by {sign}",
        expected="a mask",
        got=type(other).__name__,
        do="wrap a bool tensor: masks.keep(t) where True may attend, masks.blocked(t) where True may not",
    )
