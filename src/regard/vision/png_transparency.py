"""Transparency of PNG files as the standard defines it, where Pillow loses a part (PNG, third edition, section 11.3.1).

    grey and alpha, 16 bits       Pillow decodes it to RGBA: it becomes grey and alpha again
    tRNS, grey of 2 and 4 bits    the invisible sample has 2 or 4 bits, and the decoded pixels have 8
    tRNS, grey and RGB, 16 bits   the invisible sample has 16 bits, and the decoded pixels have 8 or lose the value

A pixel is invisible only if all 16 bits of its samples equal tRNS. Pillow decodes the upper 8 bits of RGB, and
the lower ones if it is told that the file has the other byte order.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL import Image

_SCALES = {"L;2": 85, "L;4": 17}
"""Value of a sample 1 in 8 bits, by the layout of the file."""
_KEY = "transparency"


def layout_of(picture: Image.Image) -> str:
    """How a PNG file stores its pixels, in Pillow's words, such as "L;4"; "" if it is decoded already, or no PNG."""
    tiles: Any = getattr(picture, "tile", ())
    if picture.format != "PNG" or not tiles:
        return ""
    arguments = tiles[0][3]
    return arguments if isinstance(arguments, str) else str(arguments[0])


def is_grey_layout(layout: str) -> bool:
    """Whether a layout is grey with alpha, which Pillow decodes to colours."""
    return layout == "LA;16B"


def decode_picture(picture: Image.Image) -> Image.Image:
    """Decode an open picture; of a PNG file all transparency is in the result, where Pillow loses it as alpha."""
    from PIL import Image

    layout, key = layout_of(picture), picture.info.get(_KEY)
    low = _decode_low_bytes(picture) if layout == "RGB;16B" and key is not None else None
    picture.load()
    if is_grey_layout(layout):
        red, *_, alpha = picture.split()
        return _keep_info(Image.merge("LA", (red, alpha)), picture)
    if layout in _SCALES and isinstance(key, int):
        picture.info[_KEY] = key * _SCALES[layout]  # of this picture, whose pixels are in 8 bits from now on
    if picture.format == "PNG" and picture.mode.startswith("I") and isinstance(key, int):
        samples = np.asarray(picture).astype(np.int64)
        return _keep_info(_add_alpha(_keep_upper(samples), samples != key), picture)
    if low is not None:
        samples = np.asarray(picture).astype(np.int64) << 8 | low
        return _keep_info(_add_alpha(np.asarray(picture), (samples != np.array(key)).any(axis=-1)), picture)
    return picture


def _decode_low_bytes(picture: Image.Image) -> npt.NDArray[np.uint8]:
    """The lower 8 bits of RGB samples of 16 bits (height, width, 3)."""
    from PIL import Image

    file = cast(Any, picture).fp
    place = file.tell()
    file.seek(0)
    content = file.read()
    file.seek(place)
    with Image.open(io.BytesIO(content), formats=["PNG"]) as again:
        cast(Any, again).tile = [(*tile[:3], "RGB;16L") for tile in cast(Any, again).tile]
        return np.asarray(again)


def _keep_upper(samples: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    return (samples >> 8).astype(np.uint8)


def _add_alpha(pixels: npt.NDArray[np.uint8], visible: npt.NDArray[np.bool_]) -> Image.Image:
    """A picture of pixels (height, width, ..), of which those that are not visible are transparent."""
    from PIL import Image

    alpha = Image.fromarray(visible.astype(np.uint8) * np.uint8(255))
    colours = Image.fromarray(pixels)
    colours.putalpha(alpha)
    return colours


def _keep_info(copy: Image.Image, picture: Image.Image) -> Image.Image:
    """Keep the metadata of a picture, such as how to turn it, but for its transparency, which is in the pixels."""
    copy.info = {name: value for name, value in picture.info.items() if name != _KEY}
    return copy
