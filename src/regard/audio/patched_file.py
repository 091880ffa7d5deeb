"""A file in which some bytes are replaced, without a copy of it."""

from __future__ import annotations

import io
from typing import BinaryIO, final


@final
class PatchedFile(io.RawIOBase):
    """``source`` for reading, with ``content`` in place of its bytes from ``place`` on. Closing leaves it open."""

    def __init__(self, source: BinaryIO, place: int, content: bytes) -> None:
        super().__init__()
        self._source, self._place, self._content = source, place, content

    def readable(self) -> bool:
        """Whether the file can be read: always."""
        return True

    def seekable(self) -> bool:
        """Whether another place in the file can be chosen: always."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place, ``offset`` bytes from ``whence``, and return it in bytes from the beginning."""
        return self._source.seek(offset, whence)

    def tell(self) -> int:
        """Return the place in bytes from the beginning."""
        return self._source.tell()

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill the buffer, and return the number of bytes; 0 at the end."""
        begin = self._source.tell()
        read = self._source.read(len(buffer))
        buffer[: len(read)] = read
        for place in range(max(begin, self._place), min(begin + len(read), self._place + len(self._content))):
            buffer[place - begin] = self._content[place - self._place]
        return len(read)
