"""Random masks of a spectrogram for training: stripes of bands and of frames are set to 0.

    stripes of bands    f ~ U{0 .. band_width},                       f0 ~ U{0 .. bands - f}:     x[:, f0 : f0 + f] = 0
    stripes of frames   t ~ U{0 .. floor(frame_share length)},        t0 ~ U{0 .. length - t}:    x[t0 : t0 + t] = 0

Park et al. 2019, "SpecAugment", section 2, without time warping, which the paper finds to help little; widths in frames
as a share of the length: Gulati et al. 2020, section 3.2. 0 is the mean of normalised features (``AudioProcessor``).
features (batch, frames, bands) -> the same shape; each sound gets its own stripes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import ShapeError, check_count, check_number, short_repr
from regard.tensors import check_tensor


@final
@explain_arguments
@dataclass(frozen=True)
class SpecAugment:
    """Random stripes of bands and frames. Defaults follow Gulati et al. for 80 bands.

    Args:
        band_stripes: number of stripes of bands.
        band_width: largest number of bands of a stripe.
        frame_stripes: number of stripes of frames.
        frame_share: largest share of a sound that a stripe of frames covers, 0 to 1.

    Raises OptionError for values out of range.
    """

    band_stripes: int = 2
    band_width: int = 27
    frame_stripes: int = 10
    frame_share: float = 0.05

    def __post_init__(self) -> None:
        for name in ("band_stripes", "band_width", "frame_stripes"):
            check_count(name, getattr(self, name), minimum=0, maximum=2**16)
        check_number("frame_share", self.frame_share, minimum=0.0, maximum=1.0)

    def __call__(
        self, features: Float[Tensor, "batch frames bands"], lengths: Sequence[int], generator: torch.Generator
    ) -> Float[Tensor, "batch frames bands"]:
        """Return a copy with stripes of 0; ``lengths`` are the frames of each sound, ``generator`` is of the CPU.

        Raises ShapeError for lengths that do not fit.
        """
        check_tensor("features", features, "floats (batch, frames, bands)")
        fits = features.dim() == 3 and len(lengths) == features.shape[0]
        if not fits or not all(0 <= length <= features.shape[1] for length in lengths):
            raise ShapeError(
                "lengths do not fit the features",
                expected="features (batch, frames, bands), and the number of frames of each sound",
                got=f"features {tuple(features.shape)}, and lengths {short_repr(lengths)}",
                do="pass the lengths before padding",
            )
        masked = features.clone()
        bands = features.shape[2]
        for number, length in enumerate(lengths):
            for start, stop in _draw(self.band_stripes, min(self.band_width, bands), bands, generator):
                masked[number, :, start:stop] = 0
            for start, stop in _draw(self.frame_stripes, int(self.frame_share * length), length, generator):
                masked[number, start:stop] = 0
        return masked


def _draw(stripes: int, widest: int, length: int, generator: torch.Generator) -> list[tuple[int, int]]:
    """Draw the starts and stops of stripes."""
    drawn = []
    for _ in range(stripes):
        width = int(torch.randint(widest + 1, (), generator=generator))
        start = int(torch.randint(length - width + 1, (), generator=generator))
        drawn.append((start, start + width))
    return drawn
