"""The bytes of a file, unpacked where it is gzip, which its first bytes tell."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

from regard.errors import DataError

_GZIP = b"\x1f\x8b"


def inner_suffix(path: Path) -> str:
    """What the file inside is called by, such as ".po" of ``fr.PO.gz``."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def open_bytes(path: Path) -> io.BufferedIOBase:
    """The file, to be closed by the caller. Raises DataError where it cannot be read."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(
            f"cannot read {path}", expected="a file", got=error.strerror or str(error), do="check the path"
        ) from error
    if file.peek(2)[:2] != _GZIP:
        return file
    return _Unpacked(file)


class _Unpacked(gzip.GzipFile):
    """Closes the file under it, which GzipFile leaves open."""

    def __init__(self, file: io.BufferedReader) -> None:
        super().__init__(fileobj=file)
        self._under = file

    def close(self) -> None:
        """Close both."""
        super().close()
        self._under.close()
