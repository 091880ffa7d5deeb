"""Rows of keys and values rounded to int8, with a scale for each row: half the memory of bfloat16.

    row     (b_1 .. b_d, s)    x_i ~ s b_i,   |b_i| <= 127        a byte for each number, and the bytes of a float32
    s       max_i |x_i| / 127, and at least the smallest normal number; 0 for a row of zeros

The error of a number is at most s / 2. A row with NaN or Inf has a scale of NaN and bytes of 0, and changes no other
row. The native kernels write the same bits (``csrc/decode/stored_rows.h``), and read such rows in place.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int8
from torch import Tensor

from regard.errors import check_choice
from regard.number_formats import CACHE_FORMATS

SCALE_BYTES = 4
"""The bytes of the scale at the end of a row."""
MAX_ROWS = 64
"""The queries of a key head, those of its group together, that the decoding kernel takes at a time."""
_LARGEST = 127


def check_cache_format(cache_format: str | None) -> str | None:
    """Return the format of a cache. Raises OptionError unless it is None or one of ``CACHE_FORMATS``."""
    if cache_format is not None:
        check_choice("cache format", cache_format, CACHE_FORMATS)
    return cache_format


def stored_width(width: int, dtype: torch.dtype) -> int:
    """The number of elements in a stored row of ``width`` numbers."""
    return width + SCALE_BYTES if dtype is torch.int8 else width


def numbers_in_row(rows: Tensor) -> int:
    """Return how many numbers a row of stored keys or values (.., width) has."""
    return rows.shape[-1] - SCALE_BYTES if rows.dtype is torch.int8 else rows.shape[-1]


def round_rows(rows: Float[Tensor, "*leading width"]) -> Int8[Tensor, "*leading stored_width"]:
    """Round rows of numbers to bytes with a scale."""
    wide = rows.detach().float()
    largest = wide.abs().amax(dim=-1) if rows.shape[-1] else wide.new_zeros(rows.shape[:-1])
    scale = (largest / _LARGEST).clamp(min=torch.finfo(torch.float32).tiny)  # NaN stays NaN
    scale = torch.where(largest.isfinite(), torch.where(largest == 0, 0.0, scale), torch.nan)
    scale = scale.contiguous().unsqueeze(-1)
    numbers = torch.where(scale > 0, (wide / scale).round(), 0.0).to(torch.int8)
    return torch.cat([numbers, scale.view(torch.int8)], dim=-1)


def widen_rows(rows: Int8[Tensor, "*leading stored_width"], dtype: torch.dtype) -> Float[Tensor, "*leading width"]:
    """Return the numbers that rounded rows stand for, in a floating dtype."""
    scale = rows[..., -SCALE_BYTES:].clone(memory_format=torch.contiguous_format).view(torch.float32)
    return (rows[..., :-SCALE_BYTES].float() * scale).to(dtype)
