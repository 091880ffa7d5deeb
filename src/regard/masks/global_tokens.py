"""Global token mask: global tokens attend to every token, and every token attends to them.

    side "both"     position(query) in positions  or  key in positions
    side "query"    position(query) in positions                          global tokens attend to every token
    side "key"      key in positions                                      every token attends to global tokens

Beltagy et al. 2020 (Longformer), section 3.1, "Global Attention"; Zaheer et al. 2020 (BigBird), section 2. Combine it
with a window by ``|``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, final, get_args

import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor

from regard.arguments import explain_arguments
from regard.contract import Frame
from regard.errors import OptionError, ShapeError, check_choice, short_repr
from regard.masks.as_tensor import as_tensor, is_integer_tensor, to_device
from regard.masks.base import Mask, Rule, make_frame
from regard.masks.tile_rows import TileRows
from regard.masks.tiles import TileGrid
from regard.tensors import has_values

Side: TypeAlias = Literal["both", "query", "key"]


@final
@dataclass(frozen=True, eq=False, repr=False)
class GlobalTokens(Mask):
    """Global token mask, from ``positions`` (the same in every batch entry) or from ``flags`` (batch, length).

    Tokens beyond ``length`` are not global. ``side`` says whether it is about global queries, global keys or both.
    """

    positions: Int[Tensor, " tokens"] | None
    flags: Bool[Tensor, "batch length"] | None
    side: str = "both"

    def __post_init__(self) -> None:
        batch = 1 if self.flags is None else self.flags.shape[0]
        object.__setattr__(self, "batch", batch if batch != 1 else None)
        object.__setattr__(self, "depends_on_query", self.side != "key")

    def __repr__(self) -> str:
        side = "" if self.side == "both" else f", side={self.side!r}"
        if self.positions is None or not has_values(self.positions):
            return f"global_tokens({_dtype_and_shape(self.flags if self.positions is None else self.positions)}{side})"
        shown = [str(position) for position in self.positions[:9].tolist()]
        return f"global_tokens([{', '.join(shown[:8] + (['...'] if len(shown) > 8 else []))}]{side})"

    def check_lengths(self, queries: int, keys: int) -> None:
        """Accept any lengths: the mask is not made for particular ones."""

    def mask_mod(self, queries: int, keys: int, *, device: torch.device | str | None = None) -> Rule:
        """Return the rule for these lengths, with its tensors on ``device``."""
        of_queries, of_keys = (to_device(side, device) for side in self._query_and_key_flags(make_frame(queries, keys)))
        is_shared, side = of_keys.shape[0] == 1, self.side

        def rule(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            del head
            entry = batch * 0 if is_shared else batch
            if side == "query":
                return of_queries[entry, query] & (key >= 0)  # in the common shape of all indices
            if side == "key":
                return of_keys[entry, key] & (query >= 0)
            return of_queries[entry, query] | of_keys[entry, key]

        return rule

    def classify(self, grid: TileGrid) -> Int8[Tensor, "#batch #heads query_tiles key_tiles"]:
        """Classify each tile: empty if none of its tokens is global, full if all its queries or all its keys are."""
        of_queries, of_keys = (side.cpu() for side in self._query_and_key_flags(grid.frame))
        of_queries = of_queries[:, grid.first_row * grid.tile : grid.stop_row * grid.tile]
        query_any, query_all = (side[:, None, :, None] for side in _any_all_per_tile(of_queries, grid.tile))
        key_any, key_all = (side[:, None, None, :] for side in _any_all_per_tile(of_keys, grid.tile))
        if self.side == "query":
            return grid.codes(empty=~query_any, full=query_all)
        if self.side == "key":
            return grid.codes(empty=~key_any, full=key_all)
        return grid.codes(empty=~(query_any | key_any), full=query_all | key_all)

    def tile_bits(self, rows: TileRows) -> Int[Tensor, "tiles #tile words"]:
        """Set the bits of global keys, and all bits of global queries."""
        of_queries, of_keys = (side.cpu() for side in self._query_and_key_flags(rows.frame))
        whole = -of_queries[
            rows.batch * 0 if self.batch is None else rows.batch, rows.query
        ].long()  # all bits, or none
        if self.side == "query":
            return whole
        listed = rows.of_keys(of_keys)
        return listed if self.side == "key" else whole | listed

    def _query_and_key_flags(self, frame: Frame) -> tuple[Bool[Tensor, "batch queries"], Bool[Tensor, "batch keys"]]:
        of_keys = self._key_flags(frame.keys)
        before = max(0, -frame.offset)  # number of queries with positions before key 0
        of_queries = torch.nn.functional.pad(of_keys[:, max(0, frame.offset) :], (before, 0))
        return of_queries, of_keys

    def _key_flags(self, keys: int) -> Bool[Tensor, "batch keys"]:
        if self.positions is None:
            assert self.flags is not None
            flags = to_device(self.flags, None)
            return torch.nn.functional.pad(flags, (0, max(0, keys - flags.shape[1])))[:, :keys]
        positions = to_device(self.positions, None)
        flags = torch.zeros(keys + 1, dtype=torch.bool, device=positions.device)  # the last: all positions beyond
        return flags.index_fill(0, positions.clamp(max=keys), True)[None, :keys]


@explain_arguments
def global_tokens(
    positions: Sequence[int] | Int[Tensor, " tokens"] | Bool[Tensor, "*batch length"], *, side: Side = "both"
) -> Mask:
    """Global token mask: the global tokens attend to every token, and every token attends to them.

    ``positions``: indices of keys, the same for the whole batch; or a bool tensor (batch, length), True for global
    tokens. ``side``: "query" is the first half of the rule alone, "key" the second.
    """
    check_choice("side of global tokens", side, get_args(Side))
    tensor = as_tensor(positions, "positions", "a list of indices, or a bool tensor (batch, length)")
    if tensor.dtype == torch.bool:
        if tensor.dim() not in (1, 2):
            raise ShapeError(
                "a bool tensor of global tokens must have 1 or 2 dimensions",
                expected="(length,) or (batch, length)",
                got=f"shape {tuple(tensor.shape)}",
                do="pass True or False for each token",
            )
        return GlobalTokens(None, torch.atleast_2d(tensor), side)
    whole = tensor.long() if is_integer_tensor(tensor) else None
    if whole is None or whole.dim() != 1 or (has_values(whole) and bool((whole < 0).any())):
        raise OptionError(
            "global tokens must be positions or flags",
            expected="a list of indices of 0 or more, or a bool tensor (batch, length)",
            got=short_repr(positions),
            do="count from the start of the sequence: global_tokens([0])",
        )
    return GlobalTokens(whole.unique() if has_values(whole) else whole, None, side)


def _dtype_and_shape(tensor: Tensor | None) -> str:
    assert tensor is not None
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _any_all_per_tile(flags: Tensor, tile: int) -> tuple[Tensor, Tensor]:
    """Compute whether any, and whether all, of each tile's tokens are global; (batch, tiles) each."""
    tail = -flags.shape[1] % tile
    some = torch.nn.functional.pad(flags, (0, tail)).unflatten(1, (-1, tile)).any(2)
    every = torch.nn.functional.pad(flags, (0, tail), value=True).unflatten(1, (-1, tile)).all(2)
    return some, every
