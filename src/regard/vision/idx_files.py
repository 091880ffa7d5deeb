"""Pictures and labels in IDX files, the format of MNIST and Fashion-MNIST, plain or gzip.

    images      4 bytes 0 0 8 3, three numbers of 4 bytes, big endian: count, height, width; then bytes 0 .. 255
    labels      4 bytes 0 0 8 1, the count; then a byte for each

    train-images-idx3-ubyte(.gz)   train-labels-idx1-ubyte(.gz)     60,000 pictures to train on
    t10k-images-idx3-ubyte(.gz)    t10k-labels-idx1-ubyte(.gz)      10,000 to test

LeCun et al. 1998; Xiao et al. 2017, "Fashion-MNIST". A folder is its training pictures; the name of an images file is
that file, with the labels beside it. The sizes are checked before pixels are read.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from regard.errors import DataError
from regard.media import LabelledFile, LabelledFormat
from regard.text.gzip_io import open_decompressed

TRAINING = "train-images-idx3-ubyte"
_IMAGES, _LABELS = 0x803, 0x801
_MAX_BYTES = 2**33
_MAX_EDGE = 2**13


def find_images(path: Path) -> Path | None:
    """The file of the pictures: ``path`` itself, or the training pictures in a folder; None if there is none."""
    if path.is_dir():
        for name in (TRAINING, TRAINING.replace("-idx3", ".idx3")):
            for suffix in ("", ".gz"):
                if (path / f"{name}{suffix}").is_file():
                    return path / f"{name}{suffix}"
        return None
    return path if "images" in path.name and "idx3" in path.name else None


def describe_idx(path: Path) -> str | None:
    """The pictures of a source in words; None if it has no IDX file."""
    images = find_images(path) if path.exists() else None
    return None if images is None else f"the pictures of the IDX file {images}"


def read_idx(images: Path) -> Iterator[LabelledFile]:
    """Read the pictures of an images file, or of a folder; the labels are in the file with labels-idx1 for images-idx3.

    Raises DataError for a file that is missing, truncated, or not of this format.
    """
    images = find_images(images) or images
    labels = images.with_name(images.name.replace("images", "labels").replace("idx3", "idx1"))
    if not labels.is_file():
        other = labels.with_name(labels.name.removesuffix(".gz") if labels.suffix == ".gz" else f"{labels.name}.gz")
        if not other.is_file():
            raise DataError(
                f"the labels of {images} are missing",
                expected=f"the file {labels.name} beside it",
                got="no such file",
                do="put both files into one folder",
            )
        labels = other
    pixels, numbers = _read_array(images, _IMAGES, 3), _read_array(labels, _LABELS, 1)
    if len(pixels) != len(numbers):
        raise DataError(
            f"{images} and {labels.name} do not belong together",
            expected="one label for each picture",
            got=f"{len(pixels):,} pictures and {len(numbers):,} labels",
            do="use the two files of one set",
        )
    for index, (picture, number) in enumerate(zip(pixels, numbers.tolist(), strict=True)):
        yield LabelledFile(picture, str(number), f"picture {index} of {images}")


def _read_array(path: Path, magic: int, dimensions: int) -> npt.NDArray[np.uint8]:
    try:
        with open_decompressed(path) as file:
            header = file.read(4 + 4 * dimensions)
            if len(header) < 4 + 4 * dimensions or struct.unpack_from(">I", header)[0] != magic:
                raise DataError(
                    f"{path} is not an IDX file of {'pictures' if magic == _IMAGES else 'labels'}",
                    expected=f"a file that begins with {struct.pack('>I', magic)!r}",
                    got=repr(header[:4]),
                    do="fetch the file again",
                )
            shape = struct.unpack_from(f">{dimensions}I", header, 4)
            _check_shape(path, shape)
            size = int(np.prod(shape, dtype=np.int64))
            content = file.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} cannot be read", expected="a complete IDX file", got=str(error)[:200], do="fetch the file again"
        ) from error
    if len(content) != size:
        got = f"{len(content):,} bytes" if len(content) < size else "more"
        raise DataError(
            f"{path} does not have the length that its header says",
            expected=f"{size:,} bytes after the header",
            got=got,
            do="fetch the file again",
        )
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _check_shape(path: Path, shape: tuple[int, ...]) -> None:
    size = int(np.prod(shape, dtype=np.float64))
    if not 0 < size <= _MAX_BYTES or any(edge > _MAX_EDGE for edge in shape[1:]):
        raise DataError(
            f"{path} has an unusable size in its header",
            expected=f"1 or more pictures of edges up to {_MAX_EDGE:,}, at most {_MAX_BYTES:,} bytes",
            got=" x ".join(f"{edge:,}" for edge in shape),
            do="fetch the file again",
        )


IDX_FILES = LabelledFormat("IDX files, as of MNIST", describe_idx, read_idx)
