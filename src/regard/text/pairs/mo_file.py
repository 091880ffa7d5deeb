"""The strings of a compiled gettext catalogue, ``.mo``.

It has two tables of lengths and offsets, for the messages and their translations, in the byte order of its magic number
(GNU gettext manual, section 10.3).
"""

from __future__ import annotations

import io
import mmap
import shutil
import struct
import tempfile
from collections.abc import Iterator
from typing import Any, final

from regard.text.line import MAX_LINE_BYTES

_BYTE_ORDERS = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}


@final
class MoFile:
    """A catalogue mapped into memory, so that a string is read when it is used. Raises struct.error for other files."""

    def __init__(self, stream: io.BufferedIOBase) -> None:
        self._file: Any = stream
        if not isinstance(stream, io.BufferedReader):  # gzip, whose strings cannot be found before it is decompressed
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
            shutil.copyfileobj(stream, self._file)
            self._file.flush()
        try:
            self._data = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # an empty file
            self._data = mmap.mmap(-1, 1)

    def close(self) -> None:
        """Close the map, and the file if it is a copy."""
        self._data.close()
        self._file.close()

    def strings(self) -> Iterator[tuple[bytes, bytes] | None]:
        """Yield each message with its translation; None if one of them is too long."""
        order = _BYTE_ORDERS.get(self._data[:4])
        if order is None:
            raise struct.error("no magic number of a .mo")
        count, *tables = struct.unpack_from(f"{order}3I", self._data, 8)
        for number in range(count):
            spans = [struct.unpack_from(f"{order}2I", self._data, table + 8 * number) for table in tables]
            if any(start + length > len(self._data) for length, start in spans):
                raise struct.error(f"message {number + 1} of {count} extends beyond the end of the file")
            if any(length > MAX_LINE_BYTES for length, _ in spans):
                yield None
            else:
                message, translation = (self._data[start : start + length] for length, start in spans)
                yield message, translation
