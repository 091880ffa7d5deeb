"""Sizes of new Gatos and training hyperparameters.

tiny      minutes on a CPU        small     an hour on a CPU        base      a GPU
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import final


@final
@dataclass(frozen=True)
class Size:
    """A preset. ``length`` is the tokens of a training sequence, ``batch`` the sequences of a batch."""

    name: str
    width: int
    layers: int
    heads: int
    length: int
    batch: int
    patch_channels: int
    dropout: float
    peak: float
    warmup: int

    @property
    def inner(self) -> int:
        """The hidden size of the feed-forward layers, whose gate has as many weights again."""
        return 2 * self.width


SIZES: Mapping[str, Size] = MappingProxyType(
    {
        size.name: size
        for size in (
            Size("tiny", 128, 3, 4, 192, 16, 16, dropout=0.0, peak=2e-3, warmup=50),
            Size("small", 256, 6, 8, 512, 16, 32, dropout=0.0, peak=1e-3, warmup=200),
            Size("base", 512, 8, 8, 1024, 16, 64, dropout=0.1, peak=5e-4, warmup=500),
        )
    }
)
"""The sizes by name."""
