"""Sizes of new models of sounds, and training hyperparameters, chosen by the sounds.

    tiny     4 blocks of 64, kernels of 15        0.52 million weights for 80 bands      up to 20,000 sounds
    small    8 blocks of 128, kernels of 31       3.7 million                            up to 200,000
    base     16 blocks of 144, kernels of 31      8.7 million, Conformer S               more

Gulati et al. 2020, table 1, has the sizes of base. Frames are 25 ms long, one each 10 ms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from regard.audio import AudioProcessor
from regard.errors import check_choice
from regard.tasks.recipe_fields import FineTuning

_SIZE_LIMITS = ((20_000, "tiny"), (200_000, "small"))
_HIGHEST_RATE = 16_000
_WINDOW, _HOP = 0.025, 0.01
_LEAST_FFT = 512
_BANDS = ((16_000, 80), (8_000, 64), (0, 40))
FINE_TUNING = FineTuning(peak=1e-4, warmup=100, epochs=10)
DEFAULT_SECONDS = 60.0
"""Longest sound of a new model."""


@final
@dataclass(frozen=True)
class Size:
    """A preset: the hyperparameters of a new model and of its training for an amount of data."""

    name: str
    width: int
    layers: int
    heads: int
    inner: int
    kernel: int
    peak: float
    warmup: int


SIZES = {
    size.name: size
    for size in (
        Size("tiny", width=64, layers=4, heads=4, inner=256, kernel=15, peak=2e-3, warmup=200),
        Size("small", width=128, layers=8, heads=4, inner=512, kernel=31, peak=1e-3, warmup=500),
        Size("base", width=144, layers=16, heads=4, inner=576, kernel=31, peak=1e-3, warmup=1000),
    )
}


def choose_size(sounds: int, name: str | None = None) -> Size:
    """The size of ``name``, or that for this number of sounds. Raises OptionError for an unknown name."""
    if name is not None:
        check_choice("model", name, SIZES)
        return SIZES[name]
    return SIZES[next((one for most, one in _SIZE_LIMITS if sounds < most), "base")]


def choose_rate(rates: Sequence[int]) -> int:
    """The sampling rate of a new model: the most frequent one of its sounds, at most 16,000."""
    return min(Counter(rates).most_common(1)[0][0], _HIGHEST_RATE)


def make_processor(rate: int, *, max_seconds: float) -> AudioProcessor:
    """The processor of a new model: frames of 25 ms, one each 10 ms, of 80 bands, or fewer for low rates."""
    window = max(1, round(_WINDOW * rate))
    bands = next(count for least, count in _BANDS if rate >= least)
    fft = max(_LEAST_FFT, 2 ** (window - 1).bit_length())
    return AudioProcessor(
        rate=rate, mels=bands, fft=fft, window=window, hop=max(1, round(_HOP * rate)), max_seconds=max_seconds
    )
