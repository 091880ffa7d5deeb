"""The state of a T5's decoder between two steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from jaxtyping import Int
from torch import Tensor

from regard import masks
from regard.layers import DecoderCache
from regard.masks import Mask
from regard.models.beam_groups import BeamGroups
from regard.positions import DistanceTable


@final
@dataclass(frozen=True, eq=False)
class T5State:
    """The decoder's state between two steps.

    ``caches`` hold, for each layer, the keys and values of the tokens so far, and of the memory. The memory of a source
    is stored once, however many rows attend to it; ``groups`` maps rows to sources. ``tables`` are the biases of the
    distances up to some length, one for all layers or one for each. ``lengths`` (sources,) are those of the sources, if
    some are padded, and ``memory_mask`` then hides the padding.
    """

    caches: tuple[DecoderCache, ...]
    groups: BeamGroups
    tables: tuple[DistanceTable, ...]
    lengths: Tensor | None
    memory_mask: Mask | None

    @property
    def length(self) -> int:
        """The number of target tokens in the state."""
        return self.caches[0].length

    def reordered(self, entries: Int[Tensor, " rows"]) -> T5State:
        """Select the rows ``entries`` of the state, in that order; a row may be selected more than once."""
        groups, left = self.groups.select(entries)
        caches = tuple(cache.select(entries, left) for cache in self.caches)
        lengths, memory_mask = self.lengths, self.memory_mask
        if left is not None and lengths is not None:
            lengths = lengths[left]
            memory_mask = masks.padding(lengths)
        return T5State(caches, groups, self.tables, lengths, memory_mask)
