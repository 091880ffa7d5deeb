"""The hyperparameters of a new Perceiver that classifies pictures, in one flat config, which a recipe can change.

    input             a token is                              positions from the grid of pixels
    pixels            a pixel                                 its position, as Fourier features
    trained_pixels    a pixel, through a 1x1 convolution      nothing: a trained vector for each place
    convolution       4x4 pixels, through a convolution       its position, and that neighbours belong together

Jaegle et al. 2021, "Perceiver IO: a general architecture for structured inputs and outputs", section 4.5, appendix H.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from regard.errors import check_choice
from regard.models import (
    ClassOutput,
    ConvolutionInput,
    Perceiver,
    PerceiverConfig,
    PerceiverImageEncoder,
    PixelInput,
    TrainedPixelInput,
)

INPUTS = ("pixels", "trained_pixels", "convolution")


@final
@dataclass(frozen=True)
class PicturePerceiverConfig:
    """The hyperparameters of a classifier of pictures of one size.

    Args:
        picture_size: (height, width) in pixels.
        channels: channels of a picture.
        labels: names of the labels.
        input: how pictures become tokens, one of ``INPUTS``.
        input_width: width of a convolution of the input, and of trained positions.
        bands: frequencies of the Fourier features along each axis.
        latents, width, layers, repeats, heads, cross_heads, query_key_width, value_width, widening, cross_widening,
            activation, dropout: as in ``PerceiverConfig``.
        label_heads: heads of the query of the labels.

    Raises OptionError for an unknown input; ``build`` raises as ``PerceiverConfig`` and its parts.
    """

    picture_size: tuple[int, int]
    channels: int
    labels: tuple[str, ...]
    input: str = "pixels"
    input_width: int = 64
    bands: int = 16
    latents: int = 32
    width: int = 96
    layers: int = 5
    repeats: int = 1
    heads: int = 3
    cross_heads: int = 1
    label_heads: int = 1
    query_key_width: int | None = None
    value_width: int | None = None
    widening: int = 2
    cross_widening: int = 2
    activation: str = "gelu"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_choice("input of a Perceiver", self.input, INPUTS)

    def build(self) -> PerceiverImageEncoder:
        """Make the model, with random weights."""
        shared = (
            "latents",
            "width",
            "layers",
            "repeats",
            "heads",
            "cross_heads",
            "query_key_width",
            "value_width",
            "widening",
            "cross_widening",
            "activation",
            "dropout",
        )
        numbers = {name: getattr(self, name) for name in shared}
        output = ClassOutput(self.labels, heads=self.label_heads)
        return PerceiverImageEncoder(Perceiver(PerceiverConfig(self._make_input(), output, **numbers)))

    def _make_input(self) -> PixelInput | TrainedPixelInput | ConvolutionInput:
        size, channels = self.picture_size, self.channels
        if self.input == "pixels":
            return PixelInput(size, channels, self.bands)
        if self.input == "trained_pixels":
            return TrainedPixelInput(size, channels, self.input_width)
        return ConvolutionInput(size, channels, self.input_width, self.bands)
