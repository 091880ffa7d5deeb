"""The intermediate results of the weights of one call, for showing the computation step by step.

    weights = softmax(scale * score + bias) * gate

    score   = query . key
            = vector . tanh(query + key)                      if there is a ``vector``
    gate    = exp(-(index of key - centre)^2 / (2 deviation^2))      if there is one; else 1

A mechanism that computes its weights in this way returns the inputs of these steps (``Mechanism.steps``); others have
weights only.
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
    """Gaussian over the indices of keys, counted from 0, with standard deviation ``deviation``."""

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
    """Inputs of the steps. ``query`` and ``key`` are the inputs of the score, after its projections if it has any;
    ``mask`` is the mask of the call, joined with what the mechanism itself hides.
    """

    query: Float[Tensor, "batch heads queries size"]
    key: Float[Tensor, "batch heads keys size"]
    mask: Mask | None
    scale: float = 1.0
    vector: Float[Tensor, "heads size"] | None = None
    gate: Gaussian | None = None
