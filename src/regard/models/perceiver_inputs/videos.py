"""Videos and sound as inputs of a Perceiver: patches of frames and of samples, with Fourier features of their places.

Jaegle et al. 2021, "Perceiver IO", appendix G.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, final

from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import ShapeError
from regard.models.hyperparameters import size_field
from regard.models.perceiver_inputs.base import InputLayer, PerceiverInput, TokenwiseLayer, check_floats
from regard.positions import FourierFeatures


@final
@explain_arguments
@dataclass(frozen=True)
class VideoInput(PerceiverInput):
    """Patches of videos (batch, frames, channels, height, width), each of ``patch`` x ``patch`` pixels of one frame."""

    kind: ClassVar[str] = "video"
    resolution: tuple[int, int, int] = size_field(
        (16, 56, 56), "largest number of frames, and of patches along height and width"
    )
    channels: int = size_field(3, "channels of a frame")
    patch: int = size_field(4, "height and width of a patch, in pixels")
    bands: int = size_field(32, "number of Fourier features of a place along each axis")

    def build(self, deviation: float) -> InputLayer:
        """Make the layer, which has no weights."""
        del deviation
        return _VideoLayer(self)


@final
@explain_arguments
@dataclass(frozen=True)
class AudioInput(PerceiverInput):
    """Raw samples of sound (batch, samples), in patches of ``patch``."""

    kind: ClassVar[str] = "audio"
    samples: int = size_field(30720, "number of samples that decides the largest frequency")
    patch: int = size_field(16, "samples of a patch")
    bands: int = size_field(192, "number of Fourier features of a place")

    def build(self, deviation: float) -> InputLayer:
        """Make the layer, which has no weights."""
        del deviation
        return _AudioLayer(self)


@final
class _VideoLayer(TokenwiseLayer):
    def __init__(self, options: VideoInput) -> None:
        positions = FourierFeatures(options.resolution, options.bands)
        super().__init__(options, options.channels * options.patch**2, positions)

    def cut(self, inputs: Any) -> tuple[Tensor, tuple[int, ...]]:
        check_floats(inputs, ("batch", "frames", self.options.channels, "height", "width"))
        batch, frames, channels, height, width = inputs.shape
        patch = self.options.patch
        if height % patch or width % patch:
            raise ShapeError(
                "frames do not divide into patches",
                expected=f"a height and width that are multiples of {patch}",
                got=str(tuple(inputs.shape)),
                do="crop or resize the frames",
            )
        grid = (frames, height // patch, width // patch)
        blocks = inputs.reshape(batch, frames, channels, grid[1], patch, grid[2], patch)
        return blocks.permute(0, 1, 3, 5, 4, 6, 2).reshape(batch, math.prod(grid), -1), grid


@final
class _AudioLayer(TokenwiseLayer):
    def __init__(self, options: AudioInput) -> None:
        super().__init__(options, options.patch, FourierFeatures((options.samples,), options.bands))

    def cut(self, inputs: Any) -> tuple[Tensor, tuple[int, ...]]:
        check_floats(inputs, ("batch", "samples"))
        patch = self.options.patch
        if inputs.shape[1] % patch:
            raise ShapeError(
                "samples do not divide into patches",
                expected=f"a multiple of {patch} samples",
                got=str(tuple(inputs.shape)),
                do="pad them with zeros, and hide patches without sound: mask=masks.padding(patches)",
            )
        patches = inputs.shape[1] // patch
        return inputs.reshape(inputs.shape[0], patches, patch), (patches,)
