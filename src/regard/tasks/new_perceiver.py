"""The hyperparameters of new Perceivers of pictures and of texts, each in one flat config, which a recipe can change.

    input             a token is                              positions from the grid of pixels
    pixels            a pixel                                 its position, as Fourier features
    trained_pixels    a pixel, through a 1x1 convolution      nothing: a trained vector for each place
    convolution       4x4 pixels, through a convolution       its position, and that neighbours belong together

A Perceiver of texts reads them byte by byte: UTF-8 bytes, a trained vector for each and for its position, and no
tokenizer.

Jaegle et al. 2021, "Perceiver IO: a general architecture for structured inputs and outputs", sections 4.1 and 4.5,
appendix H.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, final

from regard.errors import check_choice
from regard.models import (
    ClassOutput,
    ConvolutionInput,
    Perceiver,
    PerceiverConfig,
    PerceiverImageEncoder,
    PerceiverTextEncoder,
    PixelInput,
    PositionOutput,
    TextInput,
    TrainedPixelInput,
)

INPUTS = ("pixels", "trained_pixels", "convolution")
DEFAULT_MOST_BYTES = 2048
"""The positions of the published model."""


@dataclass(frozen=True, kw_only=True)
class NewPerceiverConfig(ABC):
    """The hyperparameters that all new Perceivers have, as in ``PerceiverConfig``, beside their input and output."""

    latents: int = 32
    width: int = 128
    layers: int = 3
    repeats: int = 1
    heads: int = 4
    cross_heads: int = 4
    query_key_width: int | None = None
    value_width: int | None = None
    widening: int = 2
    cross_widening: int = 2
    activation: str = "gelu"
    dropout: float = 0.1

    @abstractmethod
    def build(self) -> PerceiverTextEncoder | PerceiverImageEncoder:
        """Make the model, with random weights. Raises as ``PerceiverConfig`` and its parts."""

    def make_config(self, source: Any, output: Any) -> PerceiverConfig:
        """The config of the model with this input and output."""
        return PerceiverConfig(
            source, output, **{field.name: getattr(self, field.name) for field in fields(NewPerceiverConfig)}
        )


@final
@dataclass(frozen=True, kw_only=True)
class TextPerceiverConfig(NewPerceiverConfig):
    """The hyperparameters of a text encoder.

    Args:
        max_length: positions of the input and of the queries: the most bytes of a text, and two special tokens.
        input_width: size of the vector of a byte, and of a hidden state.
        query_heads: heads of the queries of positions.
    """

    max_length: int = DEFAULT_MOST_BYTES
    input_width: int = 64
    query_heads: int = 4

    def build(self) -> PerceiverTextEncoder:
        """Make the encoder, with random weights and the tokenizer of bytes."""
        source = TextInput(max_length=self.max_length, width=self.input_width)
        output = PositionOutput(self.query_heads, self.query_key_width or self.input_width)
        return PerceiverTextEncoder(self.make_config(source, output))


@final
@dataclass(frozen=True, kw_only=True)
class PicturePerceiverConfig(NewPerceiverConfig):
    """The hyperparameters of a classifier of pictures of one size.

    Args:
        picture_size: (height, width) in pixels.
        channels: channels of a picture.
        labels: names of the labels.
        input: how pictures become tokens, one of ``INPUTS``.
        input_width: width of a convolution of the input, and of trained positions.
        bands: frequencies of the Fourier features along each axis.
        label_heads: heads of the query of the labels.

    Raises OptionError for an unknown input.
    """

    picture_size: tuple[int, int]
    channels: int
    labels: tuple[str, ...]
    input: str = "pixels"
    input_width: int = 64
    bands: int = 16
    cross_heads: int = 1
    label_heads: int = 1
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_choice("input of a Perceiver", self.input, INPUTS)

    def build(self) -> PerceiverImageEncoder:
        """Make the model, with random weights."""
        output = ClassOutput(self.labels, heads=self.label_heads)
        return PerceiverImageEncoder(Perceiver(self.make_config(self._make_input(), output)))

    def _make_input(self) -> PixelInput | TrainedPixelInput | ConvolutionInput:
        size, channels = self.picture_size, self.channels
        if self.input == "pixels":
            return PixelInput(size, channels, self.bands)
        if self.input == "trained_pixels":
            return TrainedPixelInput(size, channels, self.input_width)
        return ConvolutionInput(size, channels, self.input_width, self.bands)
