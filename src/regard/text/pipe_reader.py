"""Reader for pipes that knows whether reading the next line would block."""

from __future__ import annotations

import io
import select
from typing import Any, final


@final
class PipeReader(io.RawIOBase):
    """Raw reader of ``stream`` that counts the bytes received. Closing it leaves ``stream`` open.

    Where the system cannot tell whether a read would block (pipes on Windows), ``would_block`` is always False.
    """

    def __init__(self, stream: io.BufferedReader) -> None:
        super().__init__()
        self._stream = stream  # keep a reference: a collected stream closes its file
        self._raw: Any = stream.raw
        self._bytes_received = 0
        self.buffered: io.BufferedReader[Any] = io.BufferedReader(self)

    def readable(self) -> bool:
        """Whether the stream can be read: always True."""
        return True

    def fileno(self) -> int:
        """Return the file descriptor of the stream."""
        return self._stream.fileno()

    def readinto(self, buffer: Any) -> int:
        """Read the bytes available, waiting for at least one, into ``buffer``; return their number, 0 at the end."""
        count: int | None
        while (count := self._raw.readinto(buffer)) is None:  # the descriptor is non-blocking
            select.select([self], [], [])
        self._bytes_received += count
        return count

    def would_block(self, consumed: int) -> bool:
        """Whether reading the next line would block, after ``consumed`` bytes were read from ``buffered``."""
        # With bytes in the buffer, peek does not read, so it cannot block.
        if self._bytes_received > consumed and b"\n" in self.buffered.peek():
            return False
        try:
            return not select.select([self], [], [], 0)[0]
        except (OSError, ValueError):
            return False
