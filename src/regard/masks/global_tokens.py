"""Global tokens: they see every token, and every token sees them.

    position(query) in positions  or  key in positions

Beltagy et al. 2020 (Longformer), section 3.1, "Global Attention"; Zaheer et al. 2020 (BigBird), section 2. Join it to a
window by ``|``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor

from regard.contract import Frame
from regard.errors import OptionError, ShapeError
from regard.masks.base import Mask, Rule
from regard.masks.given import as_tensor
from regard.masks.tiles import TileGrid


@final
@dataclass(frozen=True, eq=False, repr=False)
class GlobalTokens(Mask):
    """``flags`` (batch, length): which positions are global; positions beyond ``length`` are not."""

    flags: Bool[Tensor, "batch length"]

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch", self.flags.shape[0] if self.flags.shape[0] != 1 else None)

    def __repr__(self) -> str:
        if self.flags.shape[0] > 1:
            return f"global_tokens(bool {tuple(self.flags.shape)})"
        return f"global_tokens({self.flags[0].nonzero().flatten().tolist()})"

    def check_lengths(self, queries: int, keys: int) -> None:
        """Any lengths will do."""

    def mask_mod(self, queries: int, keys: int, *, device: torch.device | str | None = None) -> Rule:
        """The rule for these lengths."""
        of_queries, of_keys = self._sides(Frame(queries, keys))
        of_queries, of_keys = of_queries.to(device), of_keys.to(device)
        one = self.flags.shape[0] == 1

        def rule(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            del head
            entry = batch * 0 if one else batch
            return of_queries[entry, query] | of_keys[entry, key]

        return rule

    def classify(self, grid: TileGrid) -> Int8[Tensor, "#batch #heads query_tiles key_tiles"]:
        """Empty where no token of the tile is global; full where all of one side are."""
        of_queries, of_keys = (side.cpu() for side in self._sides(grid.frame))
        of_queries = of_queries[:, grid.first_row * grid.tile : grid.stop_row * grid.tile]
        query_any, query_all = (side[:, None, :, None] for side in _any_all(of_queries, grid.tile))
        key_any, key_all = (side[:, None, None, :] for side in _any_all(of_keys, grid.tile))
        return grid.codes(empty=~(query_any | key_any), full=query_all | key_all)

    def _sides(self, frame: Frame) -> tuple[Bool[Tensor, "batch queries"], Bool[Tensor, "batch keys"]]:
        missing = max(0, frame.keys - self.flags.shape[1])
        of_keys = torch.nn.functional.pad(self.flags, (0, missing))[:, : frame.keys]
        before = max(0, -frame.offset)  # queries that stand before key 0
        of_queries = torch.nn.functional.pad(of_keys[:, max(0, frame.offset) :], (before, 0))
        return of_queries, of_keys


def global_tokens(positions: Sequence[int] | Int[Tensor, " tokens"] | Bool[Tensor, "batch length"]) -> Mask:
    """Tokens that see every token and that every token sees.

    ``positions``: indices of keys, the same for the whole batch; or a bool tensor (batch, length), True where global.
    """
    tensor = as_tensor(positions, "positions", "a list of indices, or a bool tensor (batch, length)")
    if tensor.dtype == torch.bool:
        if tensor.dim() not in (1, 2):
            raise ShapeError(
                "global tokens as a bool tensor have 1 or 2 dimensions",
                expected="(length,) or (batch, length)",
                got=f"shape {tuple(tensor.shape)}",
                do="mark each token",
            )
        return GlobalTokens(torch.atleast_2d(tensor).clone())
    if tensor.dim() != 1 or (tensor.numel() and (tensor.is_floating_point() or bool((tensor < 0).any()))):
        raise OptionError(
            "global tokens are given by position",
            expected="a list of indices of 0 or more, or a bool tensor (batch, length)",
            got=repr(positions),
            do="count from the start of the sequence: global_tokens([0])",
        )
    flags = torch.zeros(1, int(tensor.max()) + 1 if tensor.numel() else 0, dtype=torch.bool, device=tensor.device)
    flags[0, tensor.long()] = True
    return GlobalTokens(flags)


def _any_all(flags: Tensor, tile: int) -> tuple[Tensor, Tensor]:
    """Whether any, and whether all, of each tile's tokens are global; (batch, tiles) each."""
    tail = -flags.shape[1] % tile
    some = torch.nn.functional.pad(flags, (0, tail)).unflatten(1, (-1, tile)).any(2)
    every = torch.nn.functional.pad(flags, (0, tail), value=True).unflatten(1, (-1, tile)).all(2)
    return some, every
