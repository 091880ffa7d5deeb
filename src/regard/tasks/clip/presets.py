"""Sizes of new CLIPs, and training hyperparameters, chosen by the number of pairs.

            pictures             texts            embeddings   vocabulary
    tiny    6 layers of 128      3 of 128         128          4,000         up to 20,000 pairs
    small   8 layers of 256      4 of 256         256          16,000        up to a million
    base    12 layers of 384     6 of 384         384          32,000        more

A picture has about 8 x 8 patches. The text tower has half as many layers as the other: captions are short, and Radford
et al. 2021, section 2.5, found that it matters less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from regard.tasks.image_classification.presets import choose_patch_size, choose_picture_size

MOST_TOKENS = 77
"""The most tokens of a caption, with the start and the end token: Radford et al. 2021, section 2.4 (76 of them)."""
FINE_TUNING_PEAK, FINE_TUNING_WARMUP, FINE_TUNING_EPOCHS = 2e-5, 100, 10
_HEAD_WIDTH = 32
_SQUARE = 32


@final
@dataclass(frozen=True)
class Size:
    """A preset: the hyperparameters of a new model and of its training for an amount of data."""

    name: str
    width: int
    layers: int
    text_layers: int
    vocabulary: int
    peak: float
    warmup: int

    @property
    def heads(self) -> int:
        """The heads of both towers."""
        return self.width // _HEAD_WIDTH


SIZES = {
    size.name: size
    for size in (
        Size("tiny", width=128, layers=6, text_layers=3, vocabulary=4_000, peak=1e-3, warmup=100),
        Size("small", width=256, layers=8, text_layers=4, vocabulary=16_000, peak=1e-3, warmup=500),
        Size("base", width=384, layers=12, text_layers=6, vocabulary=32_000, peak=5e-4, warmup=2000),
    )
}
_SIZE_LIMITS = ((20_000, "tiny"), (1_000_000, "small"))


def choose_size(pairs: int, name: str | None = None) -> Size:
    """The size of a name, or that for this number of pairs."""
    return SIZES[name or next((one for most, one in _SIZE_LIMITS if pairs < most), "base")]


def choose_edge(height: int, width: int, *, all_alike: bool) -> int:
    """The edge of the square pictures of a new model, for data whose usual size is this."""
    edge = max(choose_picture_size(height, width, all_alike=all_alike))
    return edge if choose_patch_size(edge) > 1 else max(_SQUARE, choose_patch_size(edge))
