"""Recognize the structure of a mask by the function that defines it, without reading its cells.

``transformers`` describes a mask by functions of a query's and a key's position. The usual ones are a band,

    low <= key position - query position <= high        causal: high = 0; a window: low = -(window - 1)

so with padding the visible keys of query i in text b are the interval of ``visible_keys``: it takes the time to read
one number for each query, where there is a cell for each query and key.

A function that is made inside another one, such as a window of some size, is recognized by its code, and the size is
read from its closure. Any other function is not recognized, and its mask is read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, final

import numpy as np
from torch import Tensor
from transformers import masking_utils

from regard.masks.visible_keys import VisibleKeys, find_band_and_padding, find_intervals

_UNBOUNDED = 1 << 60
_AND = masking_utils.and_masks().__code__
_OR = masking_utils.or_masks().__code__
_CHUNKS = masking_utils.chunked_overlay(1, Tensor()).__code__
_WINDOW = masking_utils.sliding_window_overlay(1).__code__
_TWO_SIDED_WINDOW = masking_utils.sliding_window_bidirectional_overlay(1).__code__


@final
class _Band(NamedTuple):
    """Bounds of the position of a key less the position of a query, both included."""

    low: int = -_UNBOUNDED
    high: int = _UNBOUNDED


def recognize_function(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    **_: Any,
) -> VisibleKeys | None:
    """Find the mask of ``transformers.masking_utils.sdpa_mask`` with these arguments; None if it is not recognized."""
    del batch_size  # texts without padding have the same keys
    sizes = (q_length, kv_length, q_offset, kv_offset)
    band = _find_band(mask_function)
    if band is None or not all(isinstance(size, int) for size in sizes) or 0 in (q_length, kv_length):
        return None
    start, end = np.zeros(1, int), np.full(1, kv_length)
    if attention_mask is not None:
        padding = _find_padding(attention_mask, kv_length, kv_offset)
        if padding is None:
            return None
        start, end = padding
    row = np.arange(q_length) + (q_offset - kv_offset)
    first = np.maximum(start[:, None], row + band.low)
    stop = np.minimum(end[:, None], row + band.high + 1)
    visible = stop > first
    return find_band_and_padding(np.where(visible, first, 0), np.where(visible, stop, 0), q_length, kv_length)


def has_chunks(function: Callable[..., Any]) -> bool:
    """Whether a mask function splits the tokens into chunks, from the first one on."""
    code = getattr(function, "__code__", None)
    if code in (_AND, _OR):
        return any(map(has_chunks, inspect.getclosurevars(function).nonlocals["mask_functions"]))
    return code is _CHUNKS


def _find_padding(tokens: Tensor, kv_length: int, kv_offset: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The first token of each text and the key after its last one; None if padding lies between tokens."""
    if tokens.dim() != 2:
        return None
    cells = tokens.detach().cpu().bool().numpy()[:, kv_offset : kv_offset + kv_length]
    cells = np.pad(cells, ((0, 0), (0, kv_length - cells.shape[1])))
    intervals = find_intervals(cells[:, None])
    return None if intervals is None else (intervals[0][:, 0], intervals[1][:, 0])


def _find_band(function: Callable[..., Any]) -> _Band | None:
    """The band that a mask function describes, or None."""
    if function is masking_utils.causal_mask_function:
        return _Band(high=0)
    if function is masking_utils.bidirectional_mask_function:
        return _Band()
    code = getattr(function, "__code__", None)
    if code not in (_AND, _WINDOW, _TWO_SIDED_WINDOW):
        return None
    names = inspect.getclosurevars(function).nonlocals
    if code is _AND:
        bands = [_find_band(function) for function in names["mask_functions"]]
        known = [band for band in bands if band is not None]
        if len(known) < len(bands):
            return None
        return _Band(
            max((band.low for band in known), default=-_UNBOUNDED), min(band.high for band in (*known, _Band()))
        )
    window = names["sliding_window"]
    if not isinstance(window, int):
        return None
    return _Band(low=1 - window) if code is _WINDOW else _Band(-window, window)
