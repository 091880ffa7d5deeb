"""Pictures as inputs of a Perceiver.

    PixelInput          pixels                                 (channels, Fourier features of the position)
    TrainedPixelInput   pixels                                 (1x1 convolution, projection of a trained position)
    ConvolutionInput    a picture, cut by 4 along each side    (7x7 convolution and pooling, Fourier features)
    FlowInput           pixels of two pictures                 (linear layer over both, Fourier features)

Jaegle et al. 2021, "Perceiver IO", appendices E and H.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, final

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.arguments import explain_arguments
from regard.errors import RefusedError, ShapeError, check_weights, short_repr
from regard.layers.batch_norm_2d import BatchNorm2d
from regard.layers.projection import linear_activation
from regard.layers.to_channels_last import to_channels_last
from regard.models.hyperparameters import size_field
from regard.models.perceiver_inputs.base import (
    InputLayer,
    InputTokens,
    PerceiverInput,
    TokenwiseLayer,
    TrainedPositions,
    append_positions,
    check_floats,
)
from regard.positions import FourierFeatures, grid_positions


@final
@explain_arguments
@dataclass(frozen=True)
class PixelInput(PerceiverInput):
    """Pixels of pictures (batch, channels, height, width), each with ``bands`` Fourier features of its position.

    Pictures of other sizes than ``size`` are read too: positions always run from -1 to 1.
    """

    kind: ClassVar[str] = "pixels"
    size: tuple[int, int] = size_field((224, 224), "(height, width) whose Nyquist frequencies are the largest")
    channels: int = size_field(3, "channels of a picture")
    bands: int = size_field(64, "number of Fourier features of a position along each side")

    def build(self, deviation: float) -> InputLayer:
        """Make the layer, which has no weights."""
        del deviation
        return _PixelLayer(self)


@final
@explain_arguments
@dataclass(frozen=True)
class TrainedPixelInput(PerceiverInput):
    """Pixels of pictures (batch, channels, height, width) through a 1x1 convolution, each with a trained position.

    A token has ``width`` numbers of each. The model is told nothing about the grid of pixels. Trained positions of
    pictures of another size than ``size`` are interpolated (bicubic).
    """

    kind: ClassVar[str] = "trained_pixels"
    size: tuple[int, int] = size_field((224, 224), "(height, width) of the trained positions")
    channels: int = size_field(3, "channels of a picture")
    width: int = size_field(256, "numbers of a convolved pixel, and of a trained position")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weights(positions=math.prod(self.size), width=self.width)

    def build(self, deviation: float) -> InputLayer:
        """Make the convolution and the positions."""
        return _TrainedPixelLayer(self, deviation)


@final
@explain_arguments
@dataclass(frozen=True)
class ConvolutionInput(PerceiverInput):
    """Pictures (batch, channels, height, width) through a 7x7 convolution and pooling: a token for 4x4 pixels.

    Neighbouring tokens share pixels, so a mask of tokens is refused.
    """

    kind: ClassVar[str] = "convolution"
    size: tuple[int, int] = size_field((224, 224), "(height, width) of pictures")
    channels: int = size_field(3, "channels of a picture")
    width: int = size_field(64, "channels of the convolution")
    bands: int = size_field(64, "number of Fourier features of a position along each side")
    resolution: tuple[int, int] | None = size_field(
        None, "(rows, columns) of the grid of tokens, for the largest frequencies; None is a quarter of ``size``"
    )

    def build(self, deviation: float) -> InputLayer:
        """Make the convolution and its batch norm."""
        del deviation
        return _ConvolutionLayer(self)


@final
class _PixelLayer(TokenwiseLayer):
    def __init__(self, options: PixelInput) -> None:
        super().__init__(options, options.channels, FourierFeatures(options.size, options.bands))

    def cut(self, inputs: Any) -> tuple[Tensor, tuple[int, ...]]:
        check_floats(inputs, ("batch", self.options.channels, "height", "width"))
        return inputs.flatten(2).transpose(1, 2), tuple(inputs.shape[2:])


@final
class _TrainedPixelLayer(TokenwiseLayer):
    def __init__(self, options: TrainedPixelInput, deviation: float) -> None:
        super().__init__(options, 2 * options.width)
        self.convolution = nn.Conv2d(options.channels, options.width, kernel_size=1)
        self.positions = TrainedPositions(math.prod(options.size), options.width, deviation)
        self.position_projection = nn.Linear(options.width, options.width)

    def cut(self, inputs: Any) -> tuple[Tensor, tuple[int, ...]]:
        check_floats(inputs, ("batch", self.options.channels, "height", "width"))
        return inputs.flatten(2).transpose(1, 2), tuple(inputs.shape[2:])

    def embed(self, features: Tensor, grid: tuple[int, ...]) -> Float[Tensor, "batch tokens width"]:
        # A 1x1 convolution is a linear layer on each pixel; its weight keeps the shape that files have.
        convolution = self.convolution
        embedded = functional.linear(features, convolution.weight.flatten(1), convolution.bias)
        return append_positions(embedded, linear_activation(self._positions(grid), self.position_projection))

    def _positions(self, grid: tuple[int, ...]) -> Float[Tensor, "tokens size"]:
        """The trained positions, interpolated for a picture of another size."""
        trained = self.positions()
        if grid == self.options.size:
            return trained
        height, width = self.options.size
        grid_of_trained = trained.view(1, height, width, -1).permute(0, 3, 1, 2)
        resized = functional.interpolate(grid_of_trained, size=grid, mode="bicubic", align_corners=False)
        return resized.flatten(2)[0].T


@final
class _ConvolutionLayer(InputLayer):
    def __init__(self, options: ConvolutionInput) -> None:
        super().__init__()
        self.options = options
        self.convolution = nn.Conv2d(options.channels, options.width, kernel_size=7, stride=2, padding=3, bias=False)
        self.norm = BatchNorm2d(options.width)
        quarter = (max(1, options.size[0] // 4), max(1, options.size[1] // 4))
        self.positions = FourierFeatures(options.resolution or quarter, options.bands)

    @property
    def width(self) -> int:
        return self.options.width + self.positions.width

    def forward(self, inputs: Any, *, mask: Any = None) -> InputTokens:
        check_floats(inputs, ("batch", self.options.channels, "height", "width"))
        if mask is not None:
            raise RefusedError(
                "a Perceiver with a convolution cannot hide tokens: neighbours were computed from the same pixels",
                expected="mask=None",
                got=short_repr(mask),
                do="use PixelInput or TrainedPixelInput, whose tokens are single pixels",
            )
        if min(inputs.shape[2:]) < 5:
            raise ShapeError(
                "the picture is too small for the convolution",
                expected="a height and width of 5 or more",
                got=str(tuple(inputs.shape)),
                do="enlarge the picture, or use PixelInput",
            )
        features = self.norm(self.convolution(to_channels_last(inputs)))
        features = functional.relu(functional.max_pool2d(features, kernel_size=3, stride=2))  # pool(relu) is the same
        positions = self.positions(grid_positions(tuple(features.shape[2:]), device=features.device))
        return InputTokens(append_positions(features.flatten(2).transpose(1, 2), positions))


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
        super().__init__(options, options.width, FourierFeatures(options.size, options.bands))
        self.projection = nn.Linear(2 * options.channels, options.width)

    def cut(self, inputs: Any) -> tuple[Tensor, tuple[int, ...]]:
        check_floats(inputs, ("batch", 2, self.options.channels, *self.options.size))
        return inputs.flatten(1, 2).flatten(2).transpose(1, 2), self.options.size

    def embed(self, features: Tensor, grid: tuple[int, ...]) -> Float[Tensor, "batch tokens width"]:
        return super().embed(linear_activation(features, self.projection), grid)
