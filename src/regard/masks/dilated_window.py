"""Dilated sliding-window mask: a window with gaps, the same in every head or one for each.

    key - position(query) = dilation * n      for a whole number n, -left <= n <= right         None: unbounded

Beltagy et al. 2020 (Longformer), section 3.1, "Dilated Sliding Window": with the same number of keys, the window
reaches ``dilation`` times as far. Heads may differ in their dilation. Queries are aligned with the end of the keys
(``contract.Frame``), or with the start, as for ``masks.window``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Int8
from torch import Tensor

from regard.contract import Frame
from regard.masks.base import Mask, Rule, make_frame
from regard.masks.tiles import FULL, PARTIAL, TileGrid


@final
@dataclass(frozen=True, eq=False, repr=False)
class DilatedWindow(Mask):
    """Dilated window mask: ``left`` keys before and ``right`` after, each ``dilations`` tokens from the next.

    ``dilations`` has one number for all heads, or one for each.
    """

    left: int | None
    right: int | None
    dilations: tuple[int, ...]
    align: str = "end"

    def __post_init__(self) -> None:
        object.__setattr__(self, "heads", len(self.dilations) if len(self.dilations) > 1 else None)

    def __repr__(self) -> str:
        align = "" if self.align == "end" else f", align={self.align!r}"
        dilation = self.dilations[0] if len(self.dilations) == 1 else list(self.dilations)
        return f"window({self.left}, {self.right}, dilation={dilation}{align})"

    def check_lengths(self, queries: int, keys: int) -> None:
        """Accept any lengths: the mask is not made for particular ones."""

    def mask_mod(self, queries: int, keys: int, *, device: torch.device | str | None = None) -> Rule:
        """Return the rule for these lengths, with its tensors on ``device``."""
        offset, left, right = self._offset(make_frame(queries, keys)), self.left, self.right
        dilations = torch.tensor(self.dilations, device=device)
        is_shared = self.heads is None

        def rule(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            del batch
            dilation, distance = dilations[head * 0 if is_shared else head], key - query - offset
            allowed = distance % dilation == 0
            if left is not None:
                allowed = allowed & (distance >= -left * dilation)
            return allowed if right is None else allowed & (distance <= right * dilation)

        return rule

    def classify(self, grid: TileGrid) -> Int8[Tensor, "#batch #heads query_tiles key_tiles"]:
        """Classify each tile from its smallest and largest distance; the gaps make tiles partial."""
        dilation = torch.tensor(self.dilations, device="cpu")[None, :, None, None]
        offset = self._offset(grid.frame)
        codes = grid.classify_interval(
            grid.first_key - grid.last_query - offset,
            grid.last_key - grid.first_query - offset,
            None if self.left is None else -self.left * dilation,
            None if self.right is None else self.right * dilation,
        )
        return codes.minimum(torch.where(dilation == 1, FULL, PARTIAL).to(codes))

    def _offset(self, frame: Frame) -> int:
        return frame.offset if self.align == "end" else 0
