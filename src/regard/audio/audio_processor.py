"""Sounds to model input: resample, log-mel spectrogram, normalise, pad.

    samples    one channel at ``rate``                                          ``sound_file``
    y_t[m]     log-mel spectrogram, frames x mels                               ``log_mel``
    z_t[m]     (y_t[m] - mean_t y[m]) / (std_t y[m] + 1e-5)                     with ``normalise``, over the sound

With ``normalise``, neither the loudness of a recording nor the tone of its microphone changes the features. A batch is
padded on the right with zeros: features (batch, frames, mels), and a mask of the frames that are not padding. The
features of a sound do not depend on the other sounds of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float32, Float64
from torch import Tensor

from regard.arguments import explain_arguments
from regard.audio.log_mel import log_mel_spectrogram, mel_filter_bank
from regard.audio.sound_file import MAX_SECONDS, RATES, Sound, read_sound
from regard.errors import (
    CheckpointError,
    DataError,
    OptionError,
    RegardError,
    check_count,
    check_flag,
    check_number,
    short_repr,
)
from regard.masks import Mask, padding
from regard.media.processor_file import PROCESSOR_FILE, read_processor_fields

KIND = "RegardLogMel"
"""The field "feature_extractor_type" of the file."""


@final
class AudioFeatures(NamedTuple):
    """The model input of a batch of sounds."""

    features: Tensor
    """(batch, frames, mels), float32; 0 where a sound has ended."""
    mask: Mask
    """The padding mask of the frames."""


@final
@explain_arguments
@dataclass(frozen=True)
class AudioProcessor:
    """Makes model input of sounds. Defaults are frames of 25 ms, one each 10 ms, of 80 bands.

    Args:
        rate: samples per second; other sounds are resampled.
        mels: number of bands of the spectrogram.
        fft: number of points of the Fourier transform, even.
        window: number of samples of a frame, at most ``fft``.
        hop: number of samples from one frame to the next.
        lowest: lower edge of the lowest band, in Hz.
        highest: upper edge of the highest band, in Hz; None is rate / 2.
        scale: the mel scale, "htk" or "slaney".
        equal_area: divide each band by half of its width, in Hz.
        floor: energies below it are raised to it.
        normalise: subtract the mean of each band over the sound, and divide by its standard deviation.
        max_seconds: longer sounds are refused: attention takes memory that is quadratic in their length.

    Raises OptionError for values out of range.
    """

    rate: int = 16000
    mels: int = 80
    fft: int = 512
    window: int = 400
    hop: int = 160
    lowest: float = 0.0
    highest: float | None = None
    scale: str = "htk"
    equal_area: bool = False
    floor: float = 1e-10
    normalise: bool = True
    max_seconds: float = 60.0

    def __post_init__(self) -> None:
        check_count("rate", self.rate, minimum=RATES[0], maximum=RATES[1])
        for name in ("mels", "fft", "window", "hop"):
            check_count(name, getattr(self, name), maximum=2**16)
        check_flag("normalise", self.normalise)
        check_number("floor", self.floor, above=0.0)
        check_number("max_seconds", self.max_seconds, above=0.0, maximum=float(MAX_SECONDS))
        if self.window > self.fft:
            raise OptionError(
                "the window is longer than the Fourier transform",
                expected=f"at most fft={self.fft} samples",
                got=f"window={self.window}",
                do="raise fft",
            )
        _ = self._filters  # checks the others

    def __call__(self, sounds: Sequence[Sound | np.ndarray[Any, Any]]) -> AudioFeatures:
        """Make the model input of sounds: paths, bytes of files, or float arrays (samples,) at ``rate``.

        Raises DataError for sounds that cannot be read.
        """
        if isinstance(sounds, str | bytes) or not isinstance(sounds, Sequence) or not sounds:
            raise OptionError(
                "sounds is not a list of sounds",
                expected="a list of paths, bytes, or float arrays",
                got=short_repr(sounds),
                do="put a single sound into a list",
            )
        return pad_features([self.to_features(sound) for sound in sounds])

    def to_features(
        self, sound: Sound | np.ndarray[Any, Any], *, name: str | None = None
    ) -> Float32[Tensor, "frames mels"]:
        """The features of one sound. Raises DataError as ``read_sound``."""
        samples = torch.from_numpy(self.read_samples(sound, name=name))
        bands = log_mel_spectrogram(samples, self._filters, window=self.window, hop=self.hop, floor=self.floor)
        if not self.normalise:
            return bands
        wide = bands.double()
        return ((wide - wide.mean(dim=0)) / (wide.std(dim=0, correction=0) + 1e-5)).float()

    def fields(self) -> dict[str, Any]:
        """The fields of ``preprocessor_config.json``."""
        return {"feature_extractor_type": KIND, **asdict(self)}

    @classmethod
    def from_folder(cls, folder: Path) -> AudioProcessor | None:
        """Read ``preprocessor_config.json`` of a model folder; None if there is none.

        Raises CheckpointError for a file that is not understood.
        """
        read = read_processor_fields(folder)
        if read is None:
            return None
        try:
            return cls(**_read_fields(read))
        except (ValueError, TypeError, RegardError) as error:
            reason = f"{error.what}: {error.got}" if isinstance(error, RegardError) else str(error)
            raise CheckpointError(
                f"{folder / PROCESSOR_FILE} has no usable audio processor",
                expected=f"the fields of a {KIND}, as AudioProcessor writes them",
                got=reason[:200],
                do="check that the file belongs to this model",
            ) from error

    @cached_property
    def _filters(self) -> Float64[Tensor, "mels bins"]:
        return mel_filter_bank(
            self.mels, self.fft, self.rate, lowest=self.lowest, highest=self.highest, scale=self.scale,
            equal_area=self.equal_area,
        )  # fmt: skip

    def read_samples(
        self, sound: Sound | np.ndarray[Any, Any], *, name: str | None = None
    ) -> Float32[np.ndarray, " samples"]:
        """The samples of a sound, one channel at ``rate``. Raises DataError as ``read_sound``."""
        if not isinstance(sound, np.ndarray):
            return read_sound(sound, self.rate, name=name, max_seconds=self.max_seconds)
        if sound.ndim != 1 or sound.dtype.kind != "f" or not 1 <= len(sound) <= self.max_seconds * self.rate:
            raise DataError(
                f"{name or 'the sound'} is not an array of a sound",
                expected=f"floats (samples,), at least one, and at most {self.max_seconds:g} seconds",
                got=f"{sound.dtype} {sound.shape}",
                do="mix it to one channel, and scale integers to -1 .. 1",
            )
        if not np.isfinite(sound).all() or np.abs(sound).max() > np.finfo(np.float32).max:
            raise DataError(
                f"{name or 'the sound'} has samples that are no finite numbers",
                expected="finite float32 numbers",
                got="NaN, or a value out of range",
                do="replace them",
            )
        return np.ascontiguousarray(sound, dtype=np.float32)


@explain_arguments
def pad_features(sounds: Sequence[Float32[Tensor, "_ mels"]]) -> AudioFeatures:
    """Pad the features of sounds, each (frames, mels), on the right, and make the mask of their lengths."""
    features = torch.nn.utils.rnn.pad_sequence(list(sounds), batch_first=True)
    return AudioFeatures(features, padding([len(sound) for sound in sounds]))


def _read_fields(read: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of the processor. Raises ValueError for another kind of file."""
    kind = read.get("feature_extractor_type")
    if kind != KIND:
        raise ValueError(f"feature_extractor_type {short_repr(kind)}")
    known = {field.name for field in fields(AudioProcessor)}
    unknown = [name for name in read if name not in known and name != "feature_extractor_type"]
    if unknown:
        raise ValueError(f"unknown fields {', '.join(map(short_repr, unknown[:5]))}")
    return {name: value for name, value in read.items() if name in known}
