"""Padding masks: padded keys are hidden from every query.

padding(lengths)              key < lengths[batch]                    padded on the right
padding(lengths, "left")      key >= keys - lengths[batch]            padded on the left
padding_of(ids, pad_id)       ids[batch, key] != pad_id               padded anywhere
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, final

import torch
from jaxtyping import Int, Int8
from torch import Tensor

from regard.arguments import explain_arguments
from regard.contract import Frame, check_length
from regard.errors import DtypeError, OptionError, ShapeError, check_choice, check_count
from regard.masks.as_tensor import as_integers, as_tensor, is_integer_tensor, to_device
from regard.masks.base import CPU, Mask, Rule, make_frame
from regard.masks.dense_mask import keep
from regard.masks.kernel_mask import KernelMask
from regard.masks.tile_rows import TileRows
from regard.masks.tiles import TileGrid
from regard.tensors import has_values, is_traced


@final
@dataclass(frozen=True, eq=False, repr=False)
class Padding(Mask):
    """Padding mask: batch entry b has ``lengths[b]`` tokens; its other keys are hidden from every query."""

    lengths: Int[Tensor, " batch"]
    side: str
    longest: int | None = field(default=None, compare=False)
    """The largest length; None if the lengths have no values (a trace, "meta"), and are then not checked."""

    depends_on_query = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch", self.lengths.shape[0] if self.lengths.shape[0] != 1 else None)

    def __repr__(self) -> str:
        side = "" if self.side == "right" else f", side={self.side!r}"
        return f"padding({_lengths_repr(self.lengths)}{side})"

    def lower_without_tiles(self, frame: Frame) -> KernelMask:
        """Convert to an interval of keys for each batch entry."""
        lengths = to_device(self.lengths, CPU)
        return KernelMask(stop=lengths) if self.side == "right" else KernelMask(start=frame.keys - lengths)

    def check_lengths(self, queries: int, keys: int) -> None:
        """Raise ShapeError if a length exceeds ``keys``. Skipped in a trace, which would specialize to ``keys``."""
        del queries
        check_length("keys", keys)
        if self.longest is not None and not is_traced() and self.longest > keys:
            raise ShapeError(
                "a length in padding is larger than the number of keys",
                expected=f"lengths of at most {keys}",
                got=repr(self),
                do="build the mask from the same tokens as the keys; with a cache count the cached tokens too",
            )

    def mask_mod(self, queries: int, keys: int, *, device: torch.device | str | None = None) -> Rule:
        """Return the rule for these lengths, with its tensors on ``device``."""
        make_frame(queries, keys)
        self.check_lengths(queries, keys)
        lengths, is_shared = to_device(self.lengths, device), self.batch is None

        def right(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            del head, query
            return key < lengths[batch * 0 if is_shared else batch]

        def left(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            del head, query
            return key >= keys - lengths[batch * 0 if is_shared else batch]

        return right if self.side == "right" else left

    def classify(self, grid: TileGrid) -> Int8[Tensor, "#batch #heads query_tiles key_tiles"]:
        """Classify each tile from its first and last key."""
        lengths = self.lengths.cpu()[:, None, None, None]
        if self.side == "right":
            return grid.classify_interval(grid.first_key, grid.last_key, None, lengths - 1)
        return grid.classify_interval(grid.first_key, grid.last_key, grid.frame.keys - lengths, None)

    def tile_bits(self, rows: TileRows) -> Int[Tensor, "tiles 1 words"]:
        """Set the bits of the tokens of each batch entry."""
        lengths, keys = self.lengths.cpu()[rows.batch * 0 if self.batch is None else rows.batch], rows.frame.keys
        return rows.between(0, lengths) if self.side == "right" else rows.between(keys - lengths, keys)


@explain_arguments
def padding(lengths: Sequence[int] | Int[Tensor, " batch"], *, side: Literal["right", "left"] = "right") -> Mask:
    """Padding mask: hide the keys beyond each batch entry's length.

    ``lengths`` (batch,) integers; ``side`` says on which side of the tokens the padding is.
    """
    check_choice("padding side", side, ("left", "right"))
    tensor = as_tensor(lengths, "lengths", "one integer per batch entry")
    if tensor.dim() != 1:
        raise ShapeError(
            "padding takes one length per batch entry",
            expected="lengths of shape (batch,)",
            got=f"shape {tuple(tensor.shape)}",
            do="for a padded id matrix use masks.padding_of(ids, pad_id)",
        )
    if not is_integer_tensor(tensor):
        raise DtypeError(
            "padding takes integer lengths",
            expected="integers",
            got=str(tensor.dtype),
            do="for a bool matrix use masks.keep(tokens[:, None, None, :])",
        )
    tensor = tensor.long()
    if not has_values(tensor):
        return Padding(tensor, side)
    smallest, longest = (int(bound) for bound in tensor.aminmax()) if tensor.numel() else (0, 0)
    if smallest < 0:
        raise OptionError(
            "a length is negative",
            expected="0 or more",
            got=_lengths_repr(tensor),
            do="count the tokens of each batch entry",
        )
    return Padding(tensor, side, longest)


@explain_arguments
def padding_of(ids: Tensor | Sequence[Sequence[int]], pad_id: int) -> Mask:
    """Padding mask: hide the keys whose token id is ``pad_id``, wherever they are. ``ids`` (batch, keys)."""
    check_count("pad_id", pad_id, minimum=-(2**63), maximum=2**63 - 1)
    ids = as_integers(ids, "ids", "a matrix of token ids", "use ids.long()")
    if ids.dim() != 2:
        raise ShapeError(
            "padding_of takes a matrix of token ids",
            expected="ids of shape (batch, keys)",
            got=f"shape {tuple(ids.shape)}",
            do="add a batch dimension: ids[None]",
        )
    return keep((ids != int(pad_id))[:, None, None, :])


def _lengths_repr(lengths: Tensor) -> str:
    if not has_values(lengths):
        return f"{lengths.shape[0]} lengths"
    values = [str(length) for length in lengths[:9].tolist()]
    return "[" + ", ".join(values[:8] + (["..."] if len(values) > 8 else [])) + "]"
