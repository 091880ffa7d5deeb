"""The cache of a decoder block: what later tokens need of those before them, and how rows of a batch share it.

Rows of one entry, such as all beams of a sentence, attend as several queries of it: its keys are stored once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, final

from jaxtyping import Int, Shaped
from torch import Tensor

from regard.arguments import explain_arguments
from regard.mechanisms.key_value_cache import KeyValueCache
from regard.mechanisms.state import State, StateBytes


@final
@explain_arguments
@dataclass(frozen=True)
class DecoderCache:
    """Decoding cache of a decoder block: state of self-attention, and keys and values of the encoder's output."""

    own: State | None = None
    """State of self-attention; None before the first token."""
    memory: KeyValueCache | None = None
    """Keys and values of cross-attention; None before the first call, or without cross-attention."""

    @property
    def length(self) -> int:
        """Number of decoded tokens in the cache."""
        return 0 if self.own is None else self.own.length

    def visible_keys(self, new: int) -> int:
        """Number of keys that the next ``new`` queries of self-attention are shown."""
        return new if self.own is None else self.own.visible_keys(new)

    @property
    def bytes(self) -> StateBytes:
        """The memory of one sequence; that of cross-attention, which depends on the source, is constant."""
        own = StateBytes() if self.own is None else self.own.bytes
        if self.memory is None or self.memory.length == 0:
            return own
        return StateBytes(own.per_token, own.constant + self.memory.bytes.per_token * self.memory.length)

    def reordered(self, entries: Int[Tensor, " batch"]) -> DecoderCache:
        """Select batch entries by index, in that order. Raises OptionError for invalid indices."""
        return self.select(entries, entries)

    def select(self, own: Int[Tensor, " own"] | None, memory: Int[Tensor, " memory"] | None) -> DecoderCache:
        """Select entries of ``own`` and of ``memory`` by separate indices, in that order; None keeps all entries."""
        old, known = self.own, self.memory
        return DecoderCache(
            old if own is None or old is None else old.reordered(own),
            known if memory is None or known is None else known.reordered(memory),
        )


class SharedEntries(Protocol):
    """Mapping of the rows of a batch to shared cache entries, so that their keys and values are stored once.

    Rows of one entry attend as several queries of it: for example, all beams of a sentence attend to the same source.
    """

    def rows_to_queries(self, rows: Shaped[Tensor, "rows 1 width"]) -> Shaped[Tensor, "entries queries width"]:
        """Arrange the rows as queries of their entries; entries with fewer rows than others are padded."""
        ...

    def queries_to_rows(self, queries: Shaped[Tensor, "entries queries width"]) -> Shaped[Tensor, "rows 1 width"]:
        """Invert ``rows_to_queries``: rows in their original order, without padding."""
        ...
