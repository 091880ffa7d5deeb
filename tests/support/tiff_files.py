"""Grey TIFF files of any number of bits, from the specification (TIFF 6.0): one strip, without compression."""

from __future__ import annotations

import struct

import numpy as np


def grey_tiff(samples, bits: int, *, white_is_zero: bool = False, order: str = "<") -> bytes:
    """The file of samples (height, width) of so many ``bits``; ``order`` is "<" or ">", the order of bytes."""
    height, width = samples.shape
    if bits == 16:
        data = samples.astype(f"{order}u2").tobytes()
    else:
        rows = (samples[..., None] >> np.arange(bits - 1, -1, -1)) & 1
        data = np.packbits(rows.reshape(height, -1).astype(np.uint8), axis=1).tobytes()
    tags = [(256, width), (257, height), (258, bits), (259, 1), (262, 0 if white_is_zero else 1), (273, 0), (277, 1),
            (278, height), (279, len(data))]  # fmt: skip
    begin = 8 + 2 + 12 * len(tags) + 4
    body = b"".join(
        struct.pack(f"{order}HHII", tag, 4, 1, begin if tag == 273 else value)
        if tag in (256, 257, 273, 278, 279)
        else struct.pack(f"{order}HHIHH", tag, 3, 1, value, 0)
        for tag, value in tags
    )
    mark = b"II*\0" if order == "<" else b"MM\0*"
    return mark + struct.pack(f"{order}IH", 8, len(tags)) + body + struct.pack(f"{order}I", 0) + data
