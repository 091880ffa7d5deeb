"""Augmentation of training sounds: random changes of their features that keep the label, drawn from a generator.

    tempo     the sound is s times as long, s ~ U(1 - t, 1 + t): frames are interpolated linearly in time
    warp      band b is read at b a, a ~ U(1 - w, 1 + w): bands are interpolated linearly; above the last band its value
    masks     stripes of bands and of frames are set to 0                                              ``spec_augment``

Changes of tempo: Ko et al. 2015, "Audio augmentation for speech recognition", here without a change of pitch. Warping
of bands, as a shorter or longer vocal tract does: Jaitly and Hinton 2013, "Vocal tract length perturbation (VTLP)
improves speech recognition", on the mel scale. The stripes of "light" follow Berg et al. 2021, "Keyword
Transformer", section 3: two of at most 7 of 40 bands, and two of at most 25 of 98 frames.

Everything about a sound is drawn from its own generator, so it depends neither on the other sounds of a batch nor on
which process computes it. features (frames, bands) -> (other frames, bands)
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.audio.spec_augment import SpecAugment
from regard.errors import check_choice, check_number

LEVELS = ("none", "light", "strong")


@final
@dataclass(frozen=True)
class SoundAugmentation:
    """Which random changes are made to the features of training sounds.

    Args:
        mask_bands: largest share of the bands that a stripe covers; there are two. 0 is none.
        mask_frames: largest share of the frames that a stripe covers; there are two. 0 is none.
        tempo: largest relative change of the length, below 1; 0 is none.
        warp: largest relative change of the place of a band, below 1; 0 is none.

    Raises OptionError for values out of range.
    """

    mask_bands: float = 0.0
    mask_frames: float = 0.0
    tempo: float = 0.0
    warp: float = 0.0

    def __post_init__(self) -> None:
        for name in ("mask_bands", "mask_frames"):
            check_number(name, getattr(self, name), minimum=0.0, maximum=1.0)
        for name in ("tempo", "warp"):
            check_number(name, getattr(self, name), minimum=0.0, maximum=0.9)

    def apply(
        self, features: Float[Tensor, "frames bands"], generator: np.random.Generator, *, least_frames: int = 1
    ) -> Float[Tensor, "changed bands"]:
        """Return changed features of one sound; a change of tempo leaves at least ``least_frames``."""
        tempo, warp = (1 + strength * generator.uniform(-1, 1) for strength in (self.tempo, self.warp))
        seed = int(generator.integers(2**62))
        if self.tempo:
            features = stretch(features, max(least_frames, round(len(features) * tempo)))
        if self.warp:
            features = warp_bands(features, warp)
        width = round(self.mask_bands * features.shape[1])
        masks = SpecAugment(2 * (width > 0), width, 2 * (self.mask_frames > 0), self.mask_frames)
        return masks(features[None], [len(features)], torch.Generator().manual_seed(seed))[0]

    def override(self, **values: Any) -> SoundAugmentation:
        """A copy with other values for those that are not None. Raises OptionError for values out of range."""
        return replace(self, **{name: value for name, value in values.items() if value is not None})

    def __str__(self) -> str:
        listed = [
            f"{field.name} {getattr(self, field.name):.3g}" for field in fields(self) if getattr(self, field.name)
        ]
        return ", ".join(listed) or "none"


def choose_sound_augmentation(level: str) -> SoundAugmentation:
    """The augmentation of a level. Raises OptionError for another level.

    light     two stripes of bands, each at most 7 / 40 of them, and two of frames, each at most a quarter
    strong    the same, tempo 0.15 and warp 0.1
    """
    check_choice("augmentation", level, LEVELS)
    if level == "none":
        return SoundAugmentation()
    light = SoundAugmentation(mask_bands=7 / 40, mask_frames=0.25)
    return light if level == "light" else replace(light, tempo=0.15, warp=0.1)


def stretch(features: Float[Tensor, "frames bands"], frames: int) -> Float[Tensor, "changed bands"]:
    """Interpolate to another number of frames, linearly; the first and the last frame stay."""
    if frames == len(features):
        return features
    return _interpolate(features, torch.linspace(0, len(features) - 1, frames, dtype=torch.float64))


def warp_bands(features: Float[Tensor, "frames bands"], factor: float) -> Float[Tensor, "frames bands"]:
    """Read band b at b ``factor``, interpolated linearly; above the last band is its value."""
    places = torch.arange(features.shape[1], dtype=torch.float64) * factor
    return _interpolate(features.T, places.clamp_max(features.shape[1] - 1)).T.contiguous()


def _interpolate(rows: Float[Tensor, "rows columns"], places: Float[Tensor, " places"]) -> Float[Tensor, "places _"]:
    """The rows at fractional places, 0 to rows - 1."""
    below = places.floor().long()
    share = (places - below)[:, None].to(rows.dtype)
    above = (below + 1).clamp_max(len(rows) - 1)
    return rows[below] * (1 - share) + rows[above] * share
