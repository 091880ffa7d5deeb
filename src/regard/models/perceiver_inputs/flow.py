"""Two pictures as an input of a Perceiver, for optical flow: a linear layer over both, and Fourier features.

Jaegle et al. 2021, "Perceiver IO", appendix H.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

from jaxtyping import Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.layers.projection import linear_activation
from regard.models.hyperparameters import size_field
from regard.models.perceiver_inputs.base import (
    InputLayer,
    PerceiverInput,
    TokenwiseLayer,
    add_positions,
    check_floats,
)
from regard.positions import FourierFeatures, grid_positions


@final
@explain_arguments
@dataclass(frozen=True)
class FlowInput(PerceiverInput):
    """Two pictures (batch, 2, channels, height, width) as one token for each pixel of both.

    A linear layer maps both pictures to ``width`` numbers, beside Fourier features of the position.
    """

    kind: ClassVar[str] = "flow"
    size: tuple[int, int] = size_field((368, 496), "(height, width) of pictures")
    channels: int = size_field(27, "numbers of the neighbourhood of a pixel, 27 for 3x3 pixels of 3 colours")
    width: int = size_field(64, "numbers that the linear layer maps both pictures to")
    bands: int = size_field(64, "number of Fourier features of a position along each side")

    def build(self, deviation: float) -> InputLayer:
        """Make the linear layer."""
        del deviation
        return _FlowLayer(self)


@final
class _FlowLayer(TokenwiseLayer):
    def __init__(self, options: FlowInput) -> None:
        super().__init__()
        self.options = options
        self.projection = nn.Linear(2 * options.channels, options.width)
        self.positions = FourierFeatures(options.size, options.bands)

    @property
    def width(self) -> int:
        return self.options.width + self.positions.width

    def cut(self, inputs: Any) -> tuple[Tensor, tuple[int, ...]]:
        check_floats(inputs, ("batch", 2, self.options.channels, *self.options.size))
        return inputs.flatten(1, 2).flatten(2).transpose(1, 2), self.options.size

    def embed(self, features: Tensor, grid: tuple[int, ...]) -> Float[Tensor, "batch tokens width"]:
        positions = self.positions(grid_positions(grid, device=features.device))
        return add_positions(linear_activation(features, self.projection), positions)
