"""Trained vectors of a Perceiver: of positions, and of what is missing; and how a position joins its token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn


@final
class TrainedPositions(nn.Module):
    """Trained vectors (positions, width), normal at first; the parameter has its name in files of ``transformers``."""

    def __init__(self, positions: int, width: int, deviation: float) -> None:
        super().__init__()
        self.position_embeddings = nn.Parameter(torch.empty(positions, width))
        nn.init.normal_(self.position_embeddings, std=deviation)

    def forward(self) -> Float[Tensor, "positions width"]:
        """Return the vectors."""
        return self.position_embeddings


def trained_numbers(sizes: Mapping[str, int], deviation: float) -> nn.ParameterDict:
    """Make trained numbers (1, size) for each name, normal at first."""
    numbers = {name: nn.Parameter(torch.empty(1, size)) for name, size in sizes.items()}
    for parameter in numbers.values():
        nn.init.normal_(parameter, std=deviation)
    return nn.ParameterDict(numbers)


def add_positions(features: Tensor, positions: Float[Tensor, "tokens size"]) -> Float[Tensor, "batch tokens width"]:
    """Put the position of each token behind its features (batch, tokens, ..)."""
    spread = positions.to(features).expand(features.shape[0], -1, -1)
    return torch.cat([features, spread], dim=-1)
