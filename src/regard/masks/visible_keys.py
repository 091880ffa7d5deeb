"""Recognize the structure of a bool mask by its values: which keys each query may attend to.

A mask of ``transformers`` is a tensor, but nearly always one of a few forms. If the visible keys of every query are an
interval, and there are numbers with

    first[b, i] = max(start[b], i + low)       stop[b, i] = min(end[b], i + high + 1)

then the mask is a band (causal, a window) and padding on either side, which kernels compute faster than cells: they
skip hidden keys, and read no mask. The largest ``start``, the smallest ``end`` and the narrowest band that the
values allow are found first, and then compared with every row: if any numbers fit, these do. Keys that no query may
attend to, such as the unused part of a static cache, are left out.

The cells are read by NumPy, which searches and counts bools many times as fast as torch does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import numpy as np
from jaxtyping import Bool, Int
from torch import Tensor

from regard import masks
from regard.masks import Mask


@final
@dataclass(frozen=True)
class VisibleKeys:
    """Keys ``first`` to ``stop`` - 1, and the mask that holds among them; ``stop`` None is all of them.

    ``mask_from_key_0`` is the mask among keys 0 to ``stop`` - 1, if ``first`` is not 0.
    """

    mask: Mask | None
    first: int = 0
    stop: int | None = None
    mask_from_key_0: Mask | None = field(default=None, compare=False)

    def narrow(self, tensor: Tensor, dim: int) -> Tensor:
        """Narrow an axis of keys, unless its size is 1."""
        if (self.first == 0 and self.stop is None) or tensor.shape[dim] == 1:
            return tensor
        stop = tensor.shape[dim] if self.stop is None else self.stop
        return tensor.narrow(dim, self.first, stop - self.first)

    @property
    def from_key_0(self) -> VisibleKeys:
        """The same with all keys before ``stop``, so that key i is token i; hidden ones are hidden by the mask."""
        return self if self.first == 0 else VisibleKeys(self.mask_from_key_0, stop=self.stop)


def recognize(allowed: Bool[Tensor, "batch heads queries keys"]) -> VisibleKeys:
    """Find the simplest mask that equals ``allowed``; its values must be readable."""
    queries, keys = allowed.shape[-2:]
    stored = narrow_expanded(allowed)
    cells = stored.detach().cpu().numpy()
    if cells.all():
        return VisibleKeys(None)
    if cells.shape[1] > 1 and (cells == cells[:, :1]).all():
        stored, cells = stored[:, :1], cells[:, :1]
    intervals = None
    if cells.shape[1] == 1:
        # Along keys the size counts: an expanded row is an interval of all keys, or of none.
        intervals = find_intervals(np.broadcast_to(cells[:, 0], (*cells.shape[::2], keys)))
    found = None if intervals is None else find_band_and_padding(*intervals, queries, keys)
    return VisibleKeys(masks.keep(stored)) if found is None else found


def narrow_expanded(tensor: Tensor) -> Tensor:
    """Narrow axes along which a tensor was expanded to size 1, so that no element is read twice."""
    for dim, (stride, size) in enumerate(zip(tensor.stride(), tensor.shape, strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def find_intervals(
    cells: Bool[np.ndarray, "batch rows keys"],
) -> tuple[Int[np.ndarray, "batch rows"], Int[np.ndarray, "batch rows"]] | None:
    """First visible key and the key after the last one, 0 and 0 in rows without any; None if a row has a gap."""
    keys = cells.shape[-1]
    if keys == 1:
        return np.zeros(cells.shape[:-1], int), cells[..., 0].astype(int)
    first = cells.argmax(-1)
    visible = np.take_along_axis(cells, first[..., None], -1)[..., 0]
    rises = np.count_nonzero(cells[..., 1:] > cells[..., :-1]) + np.count_nonzero(cells[..., 0])
    if rises != np.count_nonzero(visible):
        return None
    falls = (cells[..., 1:] < cells[..., :-1]).argmax(-1)
    stop = np.where(cells[..., -1], keys, falls + 1)
    return first, np.where(visible, stop, 0)


def find_band_and_padding(
    first: Int[np.ndarray, "batch rows"], stop: Int[np.ndarray, "batch rows"], queries: int, keys: int
) -> VisibleKeys | None:
    """Find the band and the padding that give these intervals; None if there are none.

    ``rows`` is 1 if all queries have the same interval.
    """
    visible = stop > first
    if not visible.any():
        return None
    row = np.arange(first.shape[1])
    start, end = np.where(visible, first, keys).min(1), stop.max(1)
    low, high = int((first - row)[visible].min()), int((stop - 1 - row)[visible].max())
    left, right = int(start.min()), int(end.max())
    # A bound that no query reaches is none.
    bounded_below = low + len(row) - 1 > left
    bounded_above = high + 1 < right
    lower = np.maximum(start[:, None], row + low) if bounded_below else start[:, None]
    upper = np.minimum(end[:, None], row + high + 1) if bounded_above else end[:, None]
    if not np.where(visible, (lower == first) & (upper == stop), lower >= upper).all():
        return None
    offset = right - left - queries  # of the last query to the last key, among the visible keys
    before = offset - (low - left) if bounded_below else None
    after = (high - left) - offset if bounded_above else None
    if (before is not None and before < 0) or (after is not None and after < 0):
        return None
    band = None if before is None and after is None else masks.window(before, after)
    return VisibleKeys(
        _join_band_and_padding(band, start - left, end - left, right - left),
        left,
        right if right < keys else None,
        None if left == 0 else _join_band_and_padding(band, start, end, right),
    )


def _join_band_and_padding(
    band: Mask | None, start: Int[np.ndarray, " batch"], end: Int[np.ndarray, " batch"], keys: int
) -> Mask | None:
    """Join a band, which is aligned with the last of ``keys``, with the padding before ``start`` and from ``end``."""
    joined = band
    if (start > 0).any():
        padding = masks.padding((keys - start).clip(0, keys).tolist(), side="left")
        joined = padding if joined is None else joined & padding
    if (end < keys).any():
        padding = masks.padding(end.clip(0).tolist())
        joined = padding if joined is None else joined & padding
    return joined
