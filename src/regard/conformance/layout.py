"""The sizes of one call of attention."""

from typing import NamedTuple, final


@final
class Layout(NamedTuple):
    """The sizes of one call."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    head_dim: int
    value_dim: int

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.heads // self.key_heads
