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
from regard.models.perceiver_inputs.base import InputLayer, PerceiverInput, TokenwiseLayer
from regard.models.perceiver_inputs.checks import check_floats, check_shape, check_sizes
from regard.models.perceiver_inputs.trained_vectors import add_positions
from regard.positions import FourierFeatures, grid_positions


@final
@explain_arguments
@dataclass(frozen=True)
class FlowInput(PerceiverInput):
    """Two pictures (batch, 2, channels, height, width) as one token for each pixel of both.

    ``channels`` are those of the neighbourhood of a pixel, 27 for 3x3 pixels of 3 colours. A linear layer maps both
    pictures to ``width`` numbers, beside Fourier features of the position.
    """

    kind: ClassVar[str] = "flow"
    size: tuple[int, int] = (368, 496)
    channels: int = 27
    width: int = 64
    bands: int = 64

    def __post_init__(self) -> None:
        check_shape("size", self.size, axes=2)
        check_sizes(self, "channels", "width", "bands")

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
