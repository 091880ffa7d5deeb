"""Sounds whose headers do not state their length: files of programs that wrote to a pipe, and could not return.

    WAV     the size of the chunk "data" is 0 or a number for "unknown": 0xFFFFFFFF (ffmpeg, lame), 0x7FFFF000 (sox),
            0x80000000 (arecord). The samples end where the file ends
    RF64    the same, in the 64 bits of the chunk "ds64" (EBU Tech 3306)
    FLAC    0 samples in STREAMINFO (RFC 9639, section 8.2). The last frame says where it begins: see ``flac_frames``

Such a file is read as if its header stated the length, so all that is checked of others is checked of it, before memory
is taken. A file that states a length and is shorter is truncated.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import BinaryIO, final

from regard.audio.flac_frames import STREAMINFO, count_samples

_MAX_CHUNKS = 10_000
"""Chunks that are looked at; files have about five."""
_NAME_BYTES = range(0x20, 0x7F)
_SEE_DS64 = 2**32 - 1


def state_length(source: BinaryIO) -> BinaryIO:
    """The file, at its begin, with a header that states the length.

    ``source`` begins as a WAV, RF64 or FLAC file. Raises ValueError for a truncated file.
    """
    size = source.seek(0, io.SEEK_END)
    source.seek(0)
    stated = _state_flac(source) if source.read(4) == b"fLaC" else _state_wav(source, size)
    stated.seek(0)
    return stated


def _state_flac(source: BinaryIO) -> BinaryIO:
    source.seek(0)
    header = source.read(STREAMINFO.stop)
    if len(header) < STREAMINFO.stop or int.from_bytes(header[21:26], "big") % 2**36:
        return source  # too short, or of a stated length: what fails later is named there
    samples = count_samples(source)
    if samples >= 2**36:
        raise ValueError(f"{samples:,} samples by its last frame")
    kept = header[21] & 0xF0  # bits of the sample size
    return _patch(source, 21, (kept << 32 | samples).to_bytes(5, "big"))


def _patch(source: BinaryIO, place: int, content: bytes) -> BinaryIO:
    return io.BufferedReader(PatchedFile(source, place, content))


@final
@dataclass(frozen=True)
class _DataChunk:
    """Where the samples ``begin``, and their size as it is stated in ``width`` bytes at ``place``."""

    begin: int
    stated: int
    place: int
    width: int

    @property
    def has_size(self) -> bool:
        """Whether the size is no number for "unknown"."""
        return not _is_unknown(self.stated, self.width)


def _state_wav(source: BinaryIO, size: int) -> BinaryIO:
    data = _find_data(source, size)
    riff = _read_number(source, 4, 4)
    # Some programs do not count the byte of padding, and a file that is as long as it says is whole.
    is_whole = not _is_unknown(riff, 4) and riff + 8 <= size + 1
    if data is None:
        if is_whole or _is_unknown(riff, 4):
            return source
        raise ValueError(f"{size:,} bytes, and its header says {riff + 8:,}")
    left = size - data.begin
    if data.has_size and data.stated > left and not is_whole:
        raise ValueError(f"{left:,} bytes of samples, and its header says {data.stated:,}")
    if data.has_size or left >= 2 ** (8 * data.width) or (data.stated == 0 and _are_chunks(source, data.begin, size)):
        return source
    return _patch(source, data.place, left.to_bytes(data.width, "little"))


def _is_unknown(stated: int, width: int) -> bool:
    """Whether a size stands for "unknown": 0, or about the largest number with or without a sign.

    A program may subtract the size of the header, or round the number to a block.
    """
    signed = 2 ** (8 * width - 1)
    return stated == 0 or abs(stated - signed) <= 2**16 or stated >= 2 * signed - 2**16


def _find_data(source: BinaryIO, size: int) -> _DataChunk | None:
    """The chunk of the samples; None if there is none."""
    source.seek(0)
    is_rf64 = source.read(4) == b"RF64"
    place, large = 12, None
    for _ in range(_MAX_CHUNKS):
        if place + 8 > size:
            break
        source.seek(place)
        name, stated = source.read(4), _read_number(source, place + 4, 4)
        if name == b"ds64" and stated >= 16:
            large = place + 16  # the size of the file, 8 bytes, comes first
        if name == b"data":
            if is_rf64 and large is not None and stated == _SEE_DS64:
                return _DataChunk(place + 8, _read_number(source, large, 8), large, 8)
            return _DataChunk(place + 8, stated, place + 4, 4)
        place += 8 + stated + stated % 2
    return None


def _are_chunks(source: BinaryIO, place: int, size: int) -> bool:
    """Whether a file goes on with whole chunks to its end, so that what comes before is complete."""
    for _ in range(_MAX_CHUNKS):
        if place >= size:
            break
        source.seek(place)
        if not all(byte in _NAME_BYTES for byte in source.read(4)):
            return False
        stated = _read_number(source, place + 4, 4)
        place += 8 + stated + stated % 2
    return place in (size, size + 1)


def _read_number(source: BinaryIO, place: int, width: int) -> int:
    source.seek(place)
    return int.from_bytes(source.read(width), "little")


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
