"""One call of attention, checked: what every implementation is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from regard.contract import Frame
from regard.masks.base import Mask
from regard.positions.base import PairBias

Bias: TypeAlias = Tensor | PairBias


@dataclass(frozen=True)
class Request:
    """Tensors whose shapes, dtypes and devices fit; ``scale`` a number; shapes as in ``contract``."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask | None
    bias: Bias | None
    scale: float
    dropout: float = 0.0

    @property
    def frame(self) -> Frame:
        """How many queries look at how many keys."""
        return Frame(self.query.shape[2], self.key.shape[2])

    @property
    def group(self) -> int:
        """Query heads that share one key head."""
        return self.query.shape[1] // self.key.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.query.device
