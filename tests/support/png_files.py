"""PNG files of every colour type and depth, and the pixels that the standard gives them (PNG, third edition, W3C 2025).

colour type   0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGB and alpha
depth         bits of a sample: 1, 2, 4, 8 or 16
tRNS          grey and RGB: the sample or colour that is invisible, in full depth; palette: the alpha of entries
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""The passes of Adam7: first column, first row, and the steps between columns and rows."""


def png_bytes(samples, colour_type, depth, *, transparency=b"", palette=b"", interlaced=False, chunks=b"") -> bytes:
    """The file of samples (height, width, channels); rows have the five filters in turn."""
    height, width = samples.shape[:2]
    passes = _PASSES if interlaced else ((0, 0, 1, 1),)
    parts = [samples[row::down, column::across] for column, row, across, down in passes]
    data = b"".join(_filter(_pack(one, depth), max(1, CHANNELS[colour_type] * depth // 8)) for one in parts if one.size)
    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, int(interlaced))
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", header), chunk(b"PLTE", palette) if palette else b"",
            chunk(b"tRNS", transparency) if transparency else b"", chunks, chunk(b"IDAT", zlib.compress(data)),
            chunk(b"IEND", b""),
        ]
    )  # fmt: skip


def chunk(name: bytes, content: bytes) -> bytes:
    """A chunk with its length and checksum."""
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def _pack(samples, depth):
    """The rows of samples as bytes: several samples of a few bits in a byte, the first in the highest bits."""
    flat = samples.reshape(len(samples), -1)
    if depth == 16:
        return np.ascontiguousarray(flat.astype(">u2")).view(np.uint8)
    bits = (flat[..., None] >> np.arange(depth - 1, -1, -1)) & 1
    return np.packbits(bits.reshape(len(samples), -1), axis=1)


def _filter(rows, step):
    """Rows with the filters None, Sub, Up, Average and Paeth in turn: byte minus its prediction, modulo 256."""
    written, above = b"", [0] * rows.shape[1]
    for number, row in enumerate(rows.tolist()):
        kind = number % 5
        line = []
        for place, byte in enumerate(row):
            left = row[place - step] if place >= step else 0
            corner = above[place - step] if place >= step else 0
            guess = (0, left, above[place], (left + above[place]) // 2, _paeth(left, above[place], corner))[kind]
            line.append((byte - guess) % 256)
        written += bytes([kind, *line])
        above = row
    return written


def _paeth(left, above, corner):
    estimate = left + above - corner
    return min((left, above, corner), key=lambda one: abs(estimate - one))


def visible_pixels(samples, colour_type, depth, *, transparency=b"", palette=b""):
    """The pixels on white, float64 (height, width, 1 or 3), 0 to 255.

    Samples of 16 bits keep the upper 8, those of fewer than 8 are scaled.
    """
    height, width = samples.shape[:2]
    small = samples >> 8 if depth == 16 else samples * (255 // (2 ** min(depth, 8) - 1))
    colour, alpha = small, np.full((height, width), 255)
    if colour_type == 3:
        table = np.frombuffer(palette, np.uint8).reshape(-1, 3)
        alphas = np.full(len(table), 255)
        alphas[: len(transparency)] = np.frombuffer(transparency, np.uint8)
        colour, alpha = table[samples[..., 0]], alphas[samples[..., 0]]
    elif colour_type in (4, 6):
        colour, alpha = small[..., :-1], small[..., -1]
    elif transparency:
        key = np.frombuffer(transparency, ">u2")
        alpha = np.where((samples == key).all(axis=-1), 0, 255)
    share = alpha[..., None] / 255
    return share * colour + (1 - share) * 255
