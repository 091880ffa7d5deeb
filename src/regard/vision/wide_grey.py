"""Grey pictures of more than 8 bits: the upper 8, which Pillow does not take itself.

PNG     16 bits
TIFF    12 or 16 bits; in PhotometricInterpretation 0 (WhiteIsZero) the largest number is black, which Pillow turns
        round for up to 8 bits alone (TIFF 6.0, page 37)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

_BITS_PER_SAMPLE, _PHOTOMETRIC = 258, 262
_WHITE_IS_ZERO = 0


def keep_upper_bits(picture: Image.Image, source: Image.Image) -> Image.Image:
    """A decoded grey picture in 8 bits; ``source`` is the picture as it was opened, which knows its file."""
    from PIL import Image

    tags: Any = getattr(source, "tag_v2", {})
    shift = 4 if tags.get(_BITS_PER_SAMPLE) == (12,) else 8
    samples = np.asarray(picture).astype(np.int64) >> shift
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        samples = 255 - samples
    return Image.fromarray(samples.astype(np.uint8))
