"""Document mask for packed sequences: a token may attend only to tokens of its own document.

    documents(ids)    ids[batch, position(query)] == ids[batch, key]

Queries are aligned with the end of the keys (``contract.Frame``). Packing: Krell et al. 2021, "Efficient sequence
packing".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Int, Int8
from torch import Tensor

from regard.arguments import explain_arguments
from regard.contract import Frame
from regard.errors import DtypeError, ShapeError
from regard.masks.as_tensor import as_tensor, is_integer_tensor, to_device
from regard.masks.base import Mask, Rule, make_frame
from regard.masks.tiles import TileGrid
from regard.tensors import has_values


@final
@dataclass(frozen=True, eq=False, repr=False)
class Documents(Mask):
    """Document mask: ``ids`` (batch, keys), ``query_ids`` (batch, queries), None: the last of ``ids``."""

    ids: Int[Tensor, "batch keys"]
    query_ids: Int[Tensor, "batch queries"] | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch", self.ids.shape[0] if self.ids.shape[0] != 1 else None)

    def __repr__(self) -> str:
        count = f"{self.ids.unique().numel()} in " if has_values(self.ids) else ""
        return f"documents({count}{tuple(self.ids.shape)})"

    def check_lengths(self, queries: int, keys: int) -> None:
        """Raise ShapeError if the ids have other lengths."""
        self._resolve_query_ids(make_frame(queries, keys))

    def mask_mod(self, queries: int, keys: int, *, device: torch.device | str | None = None) -> Rule:
        """Return the rule, with its tensors on ``device``. Raises ShapeError if the ids have other lengths."""
        query_ids = to_device(self._resolve_query_ids(make_frame(queries, keys)), device)
        ids = to_device(self.ids, device)
        is_shared = ids.shape[0] == 1

        def rule(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            del head
            entry = batch * 0 if is_shared else batch
            return query_ids[entry, query] == ids[entry, key]

        return rule

    def classify(self, grid: TileGrid) -> Int8[Tensor, "#batch #heads query_tiles key_tiles"]:
        """Classify each tile from the smallest and largest id of its queries and of its keys."""
        of_queries = self._resolve_query_ids(grid.frame).cpu()
        of_queries = of_queries[:, grid.first_row * grid.tile : grid.stop_row * grid.tile]
        query_low, query_high = (side[:, None, :, None] for side in _tile_bounds(of_queries, grid.tile))
        key_low, key_high = (side[:, None, None, :] for side in _tile_bounds(self.ids.cpu(), grid.tile))
        apart = (query_high < key_low) | (key_high < query_low)
        alike = (query_low == key_high) & (query_high == key_low) & (query_low == query_high)
        return grid.codes(empty=apart, full=alike)

    def _resolve_query_ids(self, frame: Frame) -> Int[Tensor, "batch queries"]:
        count = frame.queries if self.query_ids is None else self.query_ids.shape[1]
        too_many = self.query_ids is None and frame.queries > frame.keys
        if self.ids.shape[1] != frame.keys or count != frame.queries or too_many:
            raise ShapeError(
                "document ids do not fit the lengths",
                expected=f"ids for {frame.keys} keys and {frame.queries} queries",
                got=f"{self.ids.shape[1]} ids of keys, {count} of queries",
                do="pass one id per key; if the queries are another sequence, pass their ids as query_ids",
            )
        return to_device(self.ids, None)[:, frame.offset :] if self.query_ids is None else self.query_ids


@explain_arguments
def documents(
    ids: Tensor | Sequence[int] | Sequence[Sequence[int]],
    *,
    query_ids: Tensor | Sequence[int] | Sequence[Sequence[int]] | None = None,
) -> Mask:
    """Document mask: a query may attend only to keys with its own document id.

    ``ids`` (batch, keys) or (keys,) integers, one per key. The queries are the last of these tokens; if they are
    another sequence (cross-attention over packed pairs), pass their ids as ``query_ids`` (batch, queries).
    """
    first, *rest = (_ids_to_tensor(side) for side in ((ids,) if query_ids is None else (ids, query_ids)))
    if rest and rest[0].shape[0] != first.shape[0]:
        raise ShapeError(
            "document ids of queries and keys have different batch sizes",
            expected=f"{first.shape[0]}",
            got=f"{rest[0].shape[0]}",
            do="pass both for the same batch",
        )
    return Documents(first, rest[0] if rest else None)


def _ids_to_tensor(given: Any) -> Int[Tensor, "batch tokens"]:
    tensor = as_tensor(given, "ids", "integers, one per token")
    if not is_integer_tensor(tensor):
        raise DtypeError(
            "document ids must be integers",
            expected="an integer dtype",
            got=str(tensor.dtype),
            do="use ids.long()",
        )
    if tensor.dim() not in (1, 2):
        raise ShapeError(
            "document ids must have 1 or 2 dimensions",
            expected="(keys,) or (batch, keys)",
            got=f"shape {tuple(tensor.shape)}",
            do="pass one id per token",
        )
    return torch.atleast_2d(tensor).long()  # large uint64 ids become negative, and stay distinct


def _tile_bounds(ids: Tensor, tile: int) -> tuple[Tensor, Tensor]:
    """Compute the smallest and the largest id in each tile, (batch, tiles) each."""
    tail = ids.shape[0], -ids.shape[1] % tile
    # Not functional.pad, whose fill value is a double: it cannot represent these two, and torch 2.15 rejects them.
    low = torch.cat([ids, ids.new_full(tail, torch.iinfo(torch.long).max)], 1)
    high = torch.cat([ids, ids.new_full(tail, torch.iinfo(torch.long).min)], 1)
    return low.unflatten(1, (-1, tile)).amin(2), high.unflatten(1, (-1, tile)).amax(2)
