"""Open files that may be gzip, which is recognised by the first bytes."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import final

from regard.errors import DataError

GZIP_MAGIC = b"\x1f\x8b"
"""First bytes of a gzip file."""


def inner_suffix(path: Path) -> str:
    """Suffix in lower case, without .gz: ".po" for ``fr.PO.gz``."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def open_raw(path: Path) -> io.BufferedReader:
    """Open a file for reading its raw bytes; the caller closes it. Raises DataError if it cannot be opened."""
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(
            f"cannot read {path}", expected="a file", got=error.strerror or str(error), do="check the path"
        ) from error


def open_decompressed(path: Path) -> io.BufferedIOBase:
    """Open a file, decompressed if it is gzip; the caller closes it. Raises DataError if it cannot be opened."""
    file = open_raw(path)
    return _GzipReader(file) if file.peek(2)[:2] == GZIP_MAGIC else file


@final
class _GzipReader(gzip.GzipFile):
    """GzipFile that also closes the underlying file."""

    def __init__(self, file: io.BufferedReader) -> None:
        super().__init__(fileobj=file)
        self._compressed_file = file

    def close(self) -> None:
        """Close the stream and the underlying file."""
        super().close()
        self._compressed_file.close()
