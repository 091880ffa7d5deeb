"""The base of models that read sounds: the Conformer.

    hidden = encoder(features, mask)    (batch, tokens, width), a hidden state for each token of the sound
    pooled                              (batch, width), the mean of the visible tokens
    logits = head(pooled)               (batch, labels), of a classifier
    logits = head(hidden)               (batch, tokens, 1 + labels), of a transcriber: see ``ctc``

The mask says which frames of the features are not padding; hidden frames have no influence. A model has the parts whose
weights its file holds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar, final

import numpy as np
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from regard.arguments import explain_arguments
from regard.audio import AudioProcessor, pad_features
from regard.audio.log_mel import band_centres
from regard.audio.sound_file import Sound
from regard.copy_to_device import copy_to
from regard.errors import DtypeError, ShapeError
from regard.fields import repr_of_shapes
from regard.layers.input_checks import check_same_device, check_same_dtype, find_visible_tokens
from regard.masks import Mask
from regard.models.kinds import AUDIO_ENCODER
from regard.models.media_encoder import DrawnInput, MediaEncoder, TimeAxis, TokenGrid
from regard.tensors import check_tensor
from regard.validation import FLOATS

_LEAST_WIDTH, _PROPORTION = 480, 0.3
"""Pixels of the width of a spectrogram, and its height as a share of the width, both about."""
_MARKS = (100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
"""Frequencies that are marked, in Hz."""


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class AudioEncoderOutput:
    """The output of an audio encoder.

    hidden   (batch, tokens, width)     hidden states after the last layer; 0 for hidden tokens
    pooled   (batch, width)             the mean of the visible tokens; 0 if there is none
    visible  (batch, tokens)            which tokens are not padding
    logits   (batch, labels), or (batch, tokens, 1 + labels) of a transcriber; None without a head
    layers   layers + 1 tensors         the embedding, then each layer's output; None without ``keep_layers``
    """

    __repr__ = repr_of_shapes

    hidden: Float[Tensor, "batch tokens width"]
    pooled: Float[Tensor, "batch width"]
    visible: Bool[Tensor, "batch tokens"]
    logits: Float[Tensor, "batch *tokens labels"] | None = None
    layers: tuple[Float[Tensor, "batch tokens width"], ...] | None = None


class AudioEncoder(MediaEncoder, ABC):
    """A model that reads sounds and returns hidden states; a classifier or transcriber, if it has a head.

    ``processor`` makes its features from sounds; None if the model folder does not say how. ``notes`` lists messages
    about its weights.
    """

    model_type: ClassVar[str]
    """The field "model_type" in config.json."""

    kind = AUDIO_ENCODER
    inputs = "features"
    processor_class = AudioProcessor

    processor: AudioProcessor | None = None
    """How the model's features are made from sounds; None if the model folder does not say."""

    @abstractmethod
    def forward(self, features: Tensor, *, mask: Mask | None = None, keep_layers: bool = False) -> AudioEncoderOutput:
        """Compute the hidden states of sounds.

        Args:
            features: (batch, frames, bands), floating point (``processor``).
            mask: which frames are not padding: ``masks.padding(lengths)``, as ``processor`` returns it.
            keep_layers: return the embedding and the output of each layer too, in ``.layers``.

        Raises ShapeError, DtypeError or DeviceError for features that do not fit, RefusedError for another mask.
        """

    @property
    @abstractmethod
    def bands(self) -> int:
        """The number of features of a frame."""

    @abstractmethod
    def count_tokens(self, frames: int) -> int:
        """The number of tokens of a sound of so many frames."""

    def draw_input(self, content: Float[Tensor, "frames bands"]) -> DrawnInput:
        """Draw features as a spectrogram, with the tokens over it."""
        processor, frames = self.require_processor(), len(content)
        pixels = draw_spectrogram(content)
        tokens, seconds = self.count_tokens(frames), processor.hop / processor.rate
        step = self.frames_per_token * seconds
        return DrawnInput(
            pixels,
            TokenGrid(1, tokens, names=tuple(f"{token * step:.2f} s" for token in range(tokens))),
            (pixels.shape[1], self.frames_per_token * pixels.shape[2] // frames),
            "time",
            f"A token has {step * 1000:.0f} ms. Attention shows which times a model uses, not why it decides.",
            "A sound has no rollout: convolutions mix neighbouring tokens between the layers of attention.",
            TimeAxis(step, frames * seconds, find_marks(processor)),
        )

    @property
    def frames_per_token(self) -> int:
        """The number of frames from the beginning of a token to the beginning of the next."""
        return next(frames for frames in count(1) if self.count_tokens(frames + 1) > 1)

    def make_input(
        self, file: Sound | np.ndarray[Any, Any], *, name: str | None = None
    ) -> Float[Tensor, "frames bands"]:
        """Make the features of a sound. See ``MediaEncoder.make_input``."""
        features: Tensor = self.require_processor().to_features(file, name=name)
        return features

    def make_batches(self, inputs: Sequence[Float[Tensor, "_ bands"]], *, batch: int) -> Iterator[Mapping[str, Any]]:
        """Make padded features of inputs, and their masks."""
        dtype = next(self.parameters()).dtype
        for begin in range(0, len(inputs), batch):
            padded, mask = pad_features(inputs[begin : begin + batch])
            yield {"features": copy_to(padded.to(dtype), self.device), "mask": mask}


def draw_spectrogram(features: Float[Tensor, "frames bands"]) -> UInt8[np.ndarray, "channels height width"]:
    """Draw features in grey, from the least energy to the largest, dark to light; low bands are below.

    Each frame and each band has some whole pixels.
    """
    numbers = features.numpy()
    smallest, largest = float(numbers.min()), float(numbers.max())
    shades = np.round(255 * (numbers - smallest) / ((largest - smallest) or 1.0)).astype(np.uint8)
    frames, bands = shades.shape
    wide = max(1, math.ceil(_LEAST_WIDTH / frames))
    high = max(1, round(_PROPORTION * frames * wide / bands))
    return np.asarray(np.repeat(np.repeat(shades.T[::-1], high, axis=0), wide, axis=1)[None])


def find_marks(processor: AudioProcessor) -> tuple[tuple[int, float], ...]:
    """Frequencies, and how far from the top of the spectrogram each is, as a share of its height."""
    centres = band_centres(
        processor.mels, processor.rate, lowest=processor.lowest, highest=processor.highest, scale=processor.scale
    )
    places = (np.arange(processor.mels) + 0.5) / processor.mels
    inside = [hertz for hertz in _MARKS if centres[0] <= hertz <= centres[-1]]
    marks = [(hertz, 1 - float(np.interp(hertz, centres, places))) for hertz in inside]
    return tuple((hertz, share) for hertz, share in marks if 0.02 < share < 0.98)


def check_features(features: object, weight: Tensor, bands: int) -> None:
    """Raise ShapeError, DtypeError or DeviceError unless ``features`` (batch, frames, bands) fit ``weight``."""
    shape = f"(batch, frames, {bands})"
    check_tensor("features", features, f"a tensor {shape}", do="make it with model.processor, or torch.as_tensor")
    assert isinstance(features, Tensor)
    if features.dtype not in FLOATS:
        raise DtypeError(
            "features have an unsupported dtype",
            expected=", ".join(str(dtype) for dtype in FLOATS),
            got=str(features.dtype),
            do="make them with model.processor",
        )
    if features.dim() != 3 or features.shape[2] != bands or features.shape[1] == 0:
        raise ShapeError(
            "features have the wrong shape",
            expected=f"{shape}, at least one frame",
            got=str(tuple(features.shape)),
            do="for one sound add a batch dimension: features[None]"
            if features.dim() == 2
            else "make them with the processor of this model",
        )
    check_same_device("features", features, weight, owner="the model")
    check_same_dtype("features", features, weight, owner="the model")


def find_visible_frames(mask: object, features: Tensor) -> Bool[Tensor, "batch frames"] | None:
    """Which frames of ``features`` (batch, frames, bands) a mask shows, or None without a mask.

    Raises ShapeError for a mask of another size, RefusedError for one that shows a frame to some queries or heads only.
    """
    return find_visible_tokens(
        mask,
        (features.shape[0], features.shape[1]),
        features.device,
        what="a mask of a sound shows a frame to all tokens, or hides it from all: convolutions mix neighbours",
        do="pass the mask that model.processor returns",
    )
