"""A stream of which is known whether more of it has to be waited for: a pipe that a program writes to."""

from __future__ import annotations

import io
import select
from typing import Any, final


@final
class PipeReader(io.RawIOBase):
    """The bytes of ``stream``, counted as they come. Closing it leaves ``stream`` open.

    Where the system cannot be asked (Windows, of pipes), nothing is ever said to be waited for.
    """

    def __init__(self, stream: io.BufferedReader) -> None:
        super().__init__()
        self._stream = stream  # once nobody holds it, it closes what is under it
        self._raw: Any = stream.raw
        self._bytes_received = 0
        self.buffered: io.BufferedReader[Any] = io.BufferedReader(self)

    def readable(self) -> bool:
        """Yes."""
        return True

    def fileno(self) -> int:
        """That of the stream."""
        return self._stream.fileno()

    def readinto(self, buffer: Any) -> int:
        """What there is, at least a byte; 0 at the end."""
        count: int | None
        while (count := self._raw.readinto(buffer)) is None:  # whoever opened it made it non-blocking
            select.select([self], [], [])
        self._bytes_received += count
        return count

    def would_block(self, taken: int) -> bool:
        """Whether the next line would have to be waited for, after ``taken`` bytes were read from ``buffered``."""
        # While something is buffered, peek reads nothing more, so it cannot wait.
        if self._bytes_received > taken and b"\n" in self.buffered.peek():
            return False
        try:
            return not select.select([self], [], [], 0)[0]
        except (OSError, ValueError):
            return False
