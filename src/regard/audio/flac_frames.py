"""The number of samples of a FLAC file whose header does not state it, from its last frame (RFC 9639, section 9).

    samples = s + b     s: the first sample of the last frame, b: samples in it
    s = n B             in a stream of fixed blocks: n is the number of the frame, B the size of a block
    s = n               in a stream of variable blocks

A frame begins with 14 bits of a sync code and a header with a CRC-8, and ends with a CRC-16 of all of it. Such bytes
also occur within a frame, so the last frame is the last one in the file whose CRC-16 is right at the end of the file.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO, final

STREAMINFO = slice(8, 42)
"""Place of the metadata block STREAMINFO, without its header, in a file."""
_SYNC = re.compile(rb"\xff[\xf8\xf9]")
_MAX_HEADER = 16
_MAX_TRIED = 16
"""Headers whose CRC-8 is right, by chance or in truth, that are tried as the last one."""


def count_samples(source: BinaryIO) -> int:
    """The samples of a file: 0 without frames. Raises ValueError for a file that does not end with a whole frame."""
    source.seek(0)
    info = source.read(STREAMINFO.stop)[STREAMINFO]
    first = _find_first_frame(source)
    size = source.seek(0, io.SEEK_END)
    if first >= size:
        return 0
    begin = max(first, size - _bound_frame(info))
    source.seek(begin)
    end = source.read()
    tried = 0
    for found in reversed(list(_SYNC.finditer(end))):
        header = _read_header(end[found.start() : found.start() + _MAX_HEADER], info)
        if header is None:
            continue
        if _crc_16(end[found.start() :]) == 0:
            return header.first_sample + header.samples
        tried += 1
        if tried == _MAX_TRIED:
            break
    raise ValueError("the last frame is not whole, and the header states no length")


def _find_first_frame(source: BinaryIO) -> int:
    """The place behind the metadata, at most the end of the file."""
    place, is_last = 4, False
    while not is_last:
        source.seek(place)
        header = source.read(4)
        if len(header) < 4:
            break
        is_last = header[0] >= 0x80
        place += 4 + int.from_bytes(header[1:], "big")
    return place


def _bound_frame(info: bytes) -> int:
    """Most bytes of a frame: as the header says, or of samples as they are, and one bit more for a side channel."""
    stated = int.from_bytes(info[7:10], "big")
    block = int.from_bytes(info[2:4], "big")
    channels, bits = (info[12] >> 1 & 7) + 1, ((info[12] & 1) << 4 | info[13] >> 4) + 1
    return max(stated, channels * (block * (bits + 1) // 8 + 2) + _MAX_HEADER + 2)


@final
@dataclass(frozen=True)
class _Header:
    """The first sample of a frame, and the number of its samples."""

    first_sample: int
    samples: int


def _read_header(begin: bytes, info: bytes) -> _Header | None:
    """Read the header of a frame; None for bytes that are none."""
    try:
        return _parse_header(begin, info)
    except IndexError:  # the file ends before the header
        return None


def _parse_header(begin: bytes, info: bytes) -> _Header | None:
    number, place = _read_coded_number(begin)
    size_code, rate_code = begin[2] >> 4, begin[2] & 15
    if number is None or size_code == 0 or rate_code == 15:
        return None
    width = {6: 1, 7: 2}.get(size_code, 0)
    samples = _BLOCKS[size_code] if width == 0 else int.from_bytes(begin[place : place + width], "big") + 1
    end = place + width + {12: 1, 13: 2, 14: 2}.get(rate_code, 0)
    if _crc_8(begin[:end]) != begin[end]:
        return None
    is_variable = begin[1] & 1
    return _Header(number if is_variable else number * int.from_bytes(info[2:4], "big"), samples)


_BLOCKS = (0, 192, *(576 << power for power in range(4)), 0, 0, *(256 << power for power in range(8)))
"""Samples of a block by the code of its size; codes 6 and 7 say them behind the number."""


def _read_coded_number(begin: bytes) -> tuple[int | None, int]:
    """The number from byte 4 on, in the code of UTF-8 with up to 36 bits, and the place behind it."""
    lead = begin[4]
    if lead < 0x80:
        return lead, 5
    more = 0  # ones behind the first
    while more < 7 and lead & 0x40 >> more:
        more += 1
    if not 1 <= more <= 6:
        return None, 5
    number = lead & (0x3F >> more)
    for index in range(5, 5 + more):
        if begin[index] >> 6 != 2:
            return None, 5
        number = number << 6 | begin[index] & 0x3F
    return number, 5 + more


def _make_crc(polynomial: int, bits: int) -> Callable[[bytes], int]:
    """The function that computes a cyclic redundancy check, highest bit first, from 0."""
    top, mask = 1 << (bits - 1), (1 << bits) - 1
    table = []
    for byte in range(256):
        rest = byte << (bits - 8)
        for _ in range(8):
            rest = (rest << 1 ^ polynomial if rest & top else rest << 1) & mask
        table.append(rest)

    def crc(data: bytes) -> int:
        rest = 0
        for byte in data:
            rest = (rest << 8 & mask) ^ table[rest >> (bits - 8) ^ byte]
        return rest

    return crc


_crc_8 = _make_crc(0x07, 8)
_crc_16 = _make_crc(0x8005, 16)
