"""Read pictures from files of unknown origin, by Pillow.

    open        the format is recognised by the content, one of ``FORMATS``; no format runs another program
    check       the size is read from the header, and a picture of more than ``MAX_PIXELS`` is refused before its pixels
                are decoded: a file of a few kilobytes may hold gigabytes of pixels
    decode      the first frame; a truncated file is an error
    turn        by the orientation of the EXIF data, as viewers do; unreadable EXIF data counts as none
    convert     to 8 bits: L (grey) or RGB

    1, L, LA, I;16          grey; 12 and 16 bits keep the upper 8
    P, RGB, RGBA, CMYK ..   RGB
    LA, PA, RGBA, P with transparency       laid on white, so what is invisible has no influence; so is a colour that
                                            the file names as invisible (``png_transparency``)

Colour profiles are not applied. 32-bit pixels (modes I and F) are refused, since no value of theirs is agreed to be
white; the exception are PNG files, which some versions of Pillow open as I, and which have 16 bits.
"""

from __future__ import annotations

import io
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from regard.arguments import explain_arguments
from regard.errors import DataError, MissingPackageError, short_repr
from regard.media import Medium
from regard.text.table_column import TEXT_NAMES
from regard.vision.idx_files import IDX_FILES
from regard.vision.packaged_sets import PACKAGED_SETS
from regard.vision.png_transparency import decode_picture, is_grey_layout, layout_of

if TYPE_CHECKING:
    from PIL import Image

MAX_PIXELS = 2**26
"""Most pixels of a picture, 8,192 x 8,192; decoded they take 200 MB."""
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TIFF", "WEBP")
"""Formats that are read, by Pillow's names; MPO are JPEG files of phones. EPS, for one, would run a program."""
SUFFIXES = (
    ".avif", ".bmp", ".gif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif",
    ".tiff", ".webp",
)  # fmt: skip
"""Endings of the names of picture files."""
PICTURES = Medium(
    "picture",
    "pictures",
    SUFFIXES,
    columns=("path", "image", "picture", "file", "filename", "file_name", "image_path", "img", "photo"),
    example="NAME.jpg",
    models="a ViT, a DeiT or a Swin",
    accepts="paths, bytes, arrays of uint8, or pictures of Pillow",
    text_names=("text", "caption", "description", "title", "alt", *TEXT_NAMES[1:]),
    by_header=True,
    formats=(IDX_FILES, PACKAGED_SETS),
    batch=64,
)
"""The medium of models that read pictures."""

Picture: TypeAlias = "Path | str | bytes | npt.NDArray[np.uint8] | Image.Image"
"""A file, its bytes, an array of uint8 (height, width) or (height, width, 1, 3 or 4), or a picture of Pillow."""

_WHITE = (255, 255, 255, 255)
_BITS_PER_SAMPLE, _PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0
_LISTED = ", ".join(name.lower() for name in FORMATS)


@explain_arguments
def read_picture(picture: Picture, *, name: str | None = None, channels: int | None = None) -> Image.Image:
    """Decode a picture: 8 bits per channel, turned upright, without transparency.

    Args:
        picture: a path, the bytes of a file, an array of uint8, or a picture of Pillow.
        name: what messages call the picture; None is its path.
        channels: 1 makes it grey, 3 makes it RGB; None leaves grey pictures grey and makes all others RGB.

    Raises DataError for a file that is missing, no picture, broken, truncated or too large; MissingPackageError without
    Pillow.
    """
    load_pillow()
    from PIL import Image

    name = name or (str(picture) if isinstance(picture, str | Path) else "the picture")
    if isinstance(picture, np.ndarray):
        image = _from_array(picture, name)
        return _convert(image, channels, name, image)
    if isinstance(picture, Image.Image):
        _check_pixels(picture, name)
        return _convert(_decode(picture, name), channels, name, picture)
    if not isinstance(picture, str | Path | bytes):
        raise DataError(
            f"{name} is not a picture",
            expected="a path, bytes, an array of uint8, or a picture of Pillow",
            got=short_repr(picture),
            do="pass the path of a picture",
        )
    with _open(picture, name) as opened:
        _check_pixels(opened, name)
        return _convert(_decode(opened, name), channels, name, opened)


def read_header(picture: Picture, *, name: str | None = None) -> tuple[int, int, bool]:
    """The height and the width of a picture before it is turned, and whether it is grey, without decoding it.

    Raises as ``read_picture``, but for pixels that cannot be decoded.
    """
    load_pillow()
    if isinstance(picture, np.ndarray):
        return picture.shape[0], picture.shape[1], picture.ndim == 2 or picture.shape[2] == 1
    if not isinstance(picture, str | Path | bytes):
        return picture.size[1], picture.size[0], _is_grey(picture)
    name = name or ("the picture" if isinstance(picture, bytes) else str(picture))
    with _open(picture, name) as opened:
        _check_pixels(opened, name)
        return opened.size[1], opened.size[0], _is_grey(opened)


def is_picture_name(path: Path) -> bool:
    """Whether the name of a file has the suffix of a picture."""
    return PICTURES.is_name(path)


def load_pillow() -> None:
    """Import Pillow. Raises MissingPackageError if it is not installed."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise MissingPackageError(
            "reading pictures needs a package",
            expected="pillow",
            got="it is not installed",
            do="pip install 'regard[vision]'",
        ) from None


def _open(picture: Path | str | bytes, name: str) -> Image.Image:
    """Open a file and read its header."""
    from PIL import Image, UnidentifiedImageError

    Image.init()  # so that the names of all formats are known
    formats = [name for name in FORMATS if name in Image.OPEN]
    source: Any = io.BytesIO(picture) if isinstance(picture, bytes) else picture
    try:
        _check_regular_file(picture, name)
        return Image.open(source, formats=formats)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large_error(name, str(error)) from None
    except UnidentifiedImageError:
        raise _not_a_picture_error(picture, name) from None
    except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
        raise DataError(
            f"cannot read {name}", expected="a picture", got=error.strerror or str(error), do="check the path"
        ) from None
    except (DataError, MemoryError):
        raise
    except Exception as error:  # the readers of Pillow raise many kinds for broken headers
        raise _broken_error(name, error) from error


def _check_regular_file(picture: Path | str | bytes, name: str) -> None:
    """Raise DataError for a pipe or a device, which could block without end; OSError for a path that has no file."""
    if isinstance(picture, bytes):
        return
    mode = Path(picture).stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise DataError(f"{name} is not a file", expected="a picture", got="a pipe or device", do="check the path")


def _check_pixels(picture: Image.Image, name: str) -> None:
    width, height = picture.size
    if width * height > MAX_PIXELS:
        raise _too_large_error(name, f"{width:,} x {height:,} pixels")
    if width * height == 0:
        raise DataError(f"{name} has no pixels", expected="a picture", got=f"{width} x {height}", do="leave it out")


def _decode(picture: Image.Image, name: str) -> Image.Image:
    """Decode the first frame and turn it upright."""
    from PIL import ImageOps

    try:
        if getattr(picture, "n_frames", 1) > 1:
            picture.seek(0)
        decoded = decode_picture(picture)
    except MemoryError:
        raise
    except Exception as error:  # OSError, SyntaxError, ValueError, struct.error, zlib.error ..
        raise _broken_error(name, error) from error
    try:
        return ImageOps.exif_transpose(decoded)
    except Exception:  # broken EXIF data; the pixels are fine
        return decoded


def _convert(picture: Image.Image, channels: int | None, name: str, source: Image.Image) -> Image.Image:
    """Convert a decoded picture to mode L or RGB; ``source`` is the picture as it was opened."""
    from PIL import Image

    if picture.mode.startswith("I;16") or (picture.mode == "I" and source.format == "PNG"):
        picture = _keep_upper_bits(picture, source)
    if picture.mode in ("I", "F"):
        raise DataError(
            f"{name} has 32 bits per pixel, and which number is white is not known",
            expected="8 or 16 bits per channel",
            got=f"mode {picture.mode}",
            do="convert it to 8 bits",
        )
    if picture.has_transparency_data:
        visible = Image.new("RGBA", picture.size, _WHITE)
        visible.alpha_composite(picture.convert("RGBA"))
        is_grey = picture.mode in ("LA", "La", "L", "1")
        picture = visible.convert("L" if is_grey else "RGB")
    grey = channels == 1 or (channels is None and picture.mode in ("L", "1"))
    mode = "L" if grey else "RGB"
    return picture if picture.mode == mode else picture.convert(mode)


def _keep_upper_bits(picture: Image.Image, source: Image.Image) -> Image.Image:
    """The upper 8 bits of a decoded grey picture; ``source`` is the picture as it was opened, which knows its file.

    A TIFF file has 12 or 16 bits; in PhotometricInterpretation 0 (WhiteIsZero) the largest number is black, which
    Pillow turns round for up to 8 bits alone (TIFF 6.0, page 37).
    """
    from PIL import Image

    tags: Any = getattr(source, "tag_v2", {})
    shift = 4 if tags.get(_BITS_PER_SAMPLE) == (12,) else 8
    samples = np.asarray(picture).astype(np.int64) >> shift
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        samples = 255 - samples
    return Image.fromarray(samples.astype(np.uint8))


def _is_grey(picture: Image.Image) -> bool:
    return picture.mode in ("1", "L", "LA", "La") or picture.mode.startswith("I") or is_grey_layout(layout_of(picture))


def _from_array(array: npt.NDArray[Any], name: str) -> Image.Image:
    from PIL import Image

    shaped = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))
    if array.dtype != np.uint8 or not shaped or array.size == 0:
        raise DataError(
            f"{name} is not an array of a picture",
            expected="uint8 (height, width), or (height, width, channels) with 1, 3 or 4 channels",
            got=f"{array.dtype} {array.shape}",
            do="convert it, for example (255 * array).astype('uint8')",
        )
    if array.shape[0] * array.shape[1] > MAX_PIXELS:
        raise _too_large_error(name, f"{array.shape[1]:,} x {array.shape[0]:,} pixels")
    return Image.fromarray(np.ascontiguousarray(array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array))


def _too_large_error(name: str, got: str) -> DataError:
    return DataError(
        f"{name} has too many pixels",
        expected=f"at most {MAX_PIXELS:,} pixels, as 8,192 x 8,192",
        got=got,
        do="make it smaller, or leave it out",
    )


def _not_a_picture_error(picture: Path | str | bytes, name: str) -> DataError:
    begin = picture[:8] if isinstance(picture, bytes) else b""
    if not isinstance(picture, bytes):
        with Path(picture).open("rb") as file:
            begin = file.read(8)
    return DataError(
        f"{name} is not a picture that can be read",
        expected=f"one of the formats {_LISTED}",
        got=f"a file that begins with {begin!r}" if begin else "an empty file",
        do="convert it to PNG or JPEG, or leave it out",
    )


def _broken_error(name: str, error: Exception) -> DataError:
    reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return DataError(
        f"{name} is broken or truncated",
        expected="a complete picture",
        got=reason[:200],
        do="replace it, or leave it out",
    )
