"""How the weights of one call come about, for whoever shows it step by step.

    weights = softmax(scale * score + bias) * gate

    score   = query . key
            = vector . tanh(query + key)                      where there is a ``vector``
    gate    = exp(-(place of key - centre)^2 / (2 deviation^2))      where there is one; else 1

A mechanism that works in these steps says what goes into them (``Mechanism.steps``). For any other there are the
weights alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.masks.base import Mask


@final
@dataclass(frozen=True, eq=False)
class Gaussian:
    """A bell curve over the places of keys, counted from 0, ``deviation`` wide."""

    centre: Float[Tensor, "batch heads queries"]
    deviation: float

    def distances(self, keys: int) -> Float[Tensor, "batch heads queries keys"]:
        """j - centre, for each key j."""
        return torch.arange(keys, device=self.centre.device) - self.centre[..., None]

    def heights(self, keys: int) -> Float[Tensor, "batch heads queries keys"]:
        """exp(-(j - centre)^2 / (2 deviation^2)) at each key j: 1 at the centre."""
        return torch.exp(-(self.distances(keys) ** 2) / (2 * self.deviation**2))


@final
@dataclass(frozen=True, eq=False)
class Steps:
    """What goes into the steps. ``query`` and ``key`` are as the score takes them, projected where it does that;
    ``mask`` is that of the call, with what the mechanism itself hides.
    """

    query: Float[Tensor, "batch heads queries size"]
    key: Float[Tensor, "batch heads keys size"]
    mask: Mask | None
    scale: float = 1.0
    vector: Float[Tensor, "heads size"] | None = None
    gate: Gaussian | None = None
