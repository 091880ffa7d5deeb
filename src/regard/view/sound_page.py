"""The page of sounds: that of pictures, with the spectrogram as the picture and tokens as its columns.

Time goes from left to right, low bands are at the bottom, and the energy of a band is shown from the least to the
largest of the sound, dark to light.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from regard.arguments import explain_arguments
from regard.audio import AudioProcessor
from regard.audio.log_mel import band_centres
from regard.errors import DataError
from regard.models.image_encoder import TokenGrid
from regard.view.layer_data import Json
from regard.view.page import MAX_VECTOR_CHARACTERS, fill_template, write_readings
from regard.view.picture_data import build_pictures_data
from regard.view.picture_page import SCRIPTS
from regard.view.picture_reading import PictureLayer, PictureReading
from regard.view.sound_reading import SoundReading

_LEAST_WIDTH, _PROPORTION = 480, 0.3
"""Pixels of the width of a spectrogram, and its height as a share of the width, both about."""
_MARKS = (100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
"""Frequencies that are marked, in Hz."""
_NO_ROLLOUT = "A sound has no rollout: convolutions mix neighbouring tokens between the layers of attention."


@explain_arguments
def write_sounds(
    readings: SoundReading | Sequence[SoundReading], path: str | Path, *, model: str = "", overwrite: bool = False
) -> Path:
    """Write the page of one or more sounds, and return its path. Raises the errors of ``write_page``."""
    return write_readings(
        readings,
        SoundReading,
        path,
        render_sounds,
        maker="regard.view.read_sound_attention",
        model=model,
        overwrite=overwrite,
    )


def render_sounds(readings: Sequence[SoundReading], *, model: str = "") -> str:
    """Render the page as HTML text. Raises DataError if there is no sound, or one of a model without layers."""
    if not readings or not all(reading.layers for reading in readings):
        raise DataError(
            "there is nothing to show",
            expected="at least one sound, and a model with attention layers",
            got="no layer" if readings else "no sound",
            do="pass a sound, and a trained model",
        )
    data = build_pictures_data([_to_picture(one) for one in readings], model, MAX_VECTOR_CHARACTERS)
    for shown, reading in zip(data["texts"], readings, strict=True):
        shown["sound"] = _sound_data(reading)
    return fill_template(
        "picture.html",
        styles=("page.css", "picture.css"),
        scripts=SCRIPTS,
        title=readings[0].name,
        data=data,
        images="data:",
    )


def draw_spectrogram(reading: SoundReading) -> UInt8[np.ndarray, "1 height width"]:
    """The spectrogram as a grey picture: whole frames and bands, each of some pixels."""
    features = reading.features
    least, largest = float(features.min()), float(features.max())
    shades = np.round(255 * (features - least) / ((largest - least) or 1.0)).astype(np.uint8)
    frames = len(shades)
    wide = max(1, math.ceil(_LEAST_WIDTH / frames))
    high = max(1, round(_PROPORTION * frames * wide / shades.shape[1]))
    return np.repeat(np.repeat(shades.T[::-1], high, axis=0), wide, axis=1)[None]


def _to_picture(reading: SoundReading) -> PictureReading:
    """The sound as a picture with one row of tokens."""
    pixels = draw_spectrogram(reading)
    grid = TokenGrid(1, reading.tokens)
    cell = (pixels.shape[1], reading.frames_per_token * (pixels.shape[2] // len(reading.features)))
    layers = tuple(PictureLayer(grid, layer, cell) for layer in reading.layers)
    return PictureReading(reading.name, pixels, layers, reading.probabilities, no_rollout_reason=_NO_ROLLOUT)


def _sound_data(reading: SoundReading) -> Json:
    """The times of tokens, the length and the frequencies that are marked: each with its share of the height."""
    processor = reading.processor
    return {
        "seconds": reading.seconds_per_token,
        "length": len(reading.features) * processor.hop / processor.rate,
        "marks": [[hertz, share] for hertz, share in _find_marks(processor) if 0.02 < share < 0.98],
    }


def _find_marks(processor: AudioProcessor) -> list[tuple[int, float]]:
    """Frequencies, and how far from the top of the spectrogram each is, as a share of its height."""
    centres = band_centres(processor.mels, processor.rate, lowest=processor.lowest, highest=processor.highest,
                           scale=processor.scale)  # fmt: skip
    places = (np.arange(processor.mels) + 0.5) / processor.mels
    inside = [hertz for hertz in _MARKS if centres[0] <= hertz <= centres[-1]]
    return [(hertz, 1 - float(np.interp(hertz, centres, places))) for hertz in inside]
