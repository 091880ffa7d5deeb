"""The rows of partial tiles as words: bit ``j % 64`` of word ``j // 64`` says whether a query may attend to key j.

A range of keys costs as much as a single one. So the cells of masks whose rows are ranges are never evaluated one by
one: parts are combined word by word.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.contract import Frame

if TYPE_CHECKING:
    from regard.masks.base import Mask, Rule

WORD_BITS = 64
_BELOW = torch.tensor([2**bits - 1 if bits < WORD_BITS else -1 for bits in range(WORD_BITS + 1)], device="cpu")
"""Words whose lowest 0 to 64 bits are set."""


@final
@dataclass(frozen=True)
class TileRows:
    """The rows of some tiles: ``index`` has the batch entry, head, row and column of each among all tiles of a mask.

    ``rules`` keeps the rules of masks between the tiles of one map.
    """

    frame: Frame
    tile: int
    index: Int[Tensor, "tiles 4"]
    rules: dict[int, Rule] = field(default_factory=dict)

    @property
    def batch(self) -> Int[Tensor, "tiles 1 1"]:
        """The batch entry of each tile, from 0."""
        return self.index[:, 0, None, None]

    @property
    def head(self) -> Int[Tensor, "tiles 1 1"]:
        """The head of each tile, from 0; 0 for a mask that is the same in all heads."""
        return self.index[:, 1, None, None]

    @property
    def query(self) -> Int[Tensor, "tiles tile 1"]:
        """The query of each row; the last query for rows beyond it."""
        return self._rows.clamp(max=self.frame.queries - 1)

    @property
    def word(self) -> Int[Tensor, "tiles 1 words"]:
        """The number of each word, counted from key 0."""
        words = self.tile // WORD_BITS
        return self.index[:, 3, None, None] * words + torch.arange(words, device="cpu")

    @property
    def cells(self) -> Int[Tensor, "tiles #tile words"]:
        """The bits of the cells that exist: tiles at an edge have rows and columns beyond the last query and key."""
        keys = self.between(0, self.frame.keys)
        return torch.where(self._rows < self.frame.queries, keys, 0)

    def between(self, begin: Tensor | int, end: Tensor | int) -> Int[Tensor, "#tiles #tile words"]:
        """Set the bits of the keys from ``begin`` to ``end`` - 1, which broadcast to (tiles, tile, 1)."""
        first = self.word * WORD_BITS
        return _BELOW[(end - first).clamp(0, WORD_BITS)] & ~_BELOW[(begin - first).clamp(0, WORD_BITS)]

    def of_keys(self, flags: Bool[Tensor, "batch keys"]) -> Int[Tensor, "tiles 1 words"]:
        """Set the bits of the keys with a flag in their batch entry; one entry stands for all."""
        words = _pack(torch.nn.functional.pad(flags, (0, -flags.shape[1] % self.tile)))
        return words[self.batch * 0 if flags.shape[0] == 1 else self.batch, self.word]

    def evaluate(self, mask: Mask) -> Int[Tensor, "tiles tile words"]:
        """Set the bits of a mask by its rule, cell by cell."""
        from regard.masks.base import check_rule

        rule = self.rules.get(id(mask))
        if rule is None:
            rule = self.rules[id(mask)] = mask.mask_mod(self.frame.queries, self.frame.keys, device="cpu")
        query = self.query
        key = self.index[:, 3, None, None] * self.tile + torch.arange(self.tile, device="cpu")
        shape = query.shape[0], self.tile, self.tile
        allowed = rule(self.batch, self.head, query, key.clamp(max=self.frame.keys - 1))
        check_rule(mask, allowed)
        return _pack(allowed.expand(shape).contiguous())

    @property
    def _rows(self) -> Int[Tensor, "tiles tile 1"]:
        return self.index[:, 2, None, None] * self.tile + torch.arange(self.tile, device="cpu")[:, None]


def _pack(flags: Bool[Tensor, "*rows cells"]) -> Int[Tensor, "*rows words"]:
    """Pack bools, in a multiple of 64, into words, lowest bit first."""
    octets = np.packbits(flags.numpy(), axis=-1, bitorder="little")
    return torch.from_numpy(octets.view("<i8").astype(np.int64, copy=False))
