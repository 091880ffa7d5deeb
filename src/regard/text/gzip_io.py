"""The bytes of a file, unpacked where it is gzip, which its first bytes tell."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import final

from regard.errors import DataError

GZIP_MAGIC = b"\x1f\x8b"
"""What a compressed file begins with."""


def inner_suffix(path: Path) -> str:
    """What the file inside is called by, such as ".po" of ``fr.PO.gz``."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def open_raw(path: Path) -> io.BufferedReader:
    """The file as it is, to be closed by the caller. Raises DataError where it cannot be read."""
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(
            f"cannot read {path}", expected="a file", got=error.strerror or str(error), do="check the path"
        ) from error


def open_decompressed(path: Path) -> io.BufferedIOBase:
    """What the file holds, unpacked; to be closed by the caller. Raises DataError where it cannot be read."""
    file = open_raw(path)
    return _GzipReader(file) if file.peek(2)[:2] == GZIP_MAGIC else file


@final
class _GzipReader(gzip.GzipFile):
    """Closes the file under it, which GzipFile leaves open."""

    def __init__(self, file: io.BufferedReader) -> None:
        super().__init__(fileobj=file)
        self._compressed_file = file

    def close(self) -> None:
        """Close both."""
        super().close()
        self._compressed_file.close()
