"""Recognize the structure of a bool mask by its values: which keys each query may attend to.

A mask of ``transformers`` is a tensor, but nearly always one of a few forms. If the visible keys of every query are an
interval, and there are numbers with

    first[b, i] = max(start[b], i + low)       stop[b, i] = min(end[b], i + high + 1)

then the mask is a band (causal, a window) and padding on either side, which kernels compute faster than cells: they
skip what is hidden, and read no mask. The largest ``start``, the smallest ``end`` and the narrowest band that the
values allow are found first, and then compared with every row: if any numbers fit, these do. Keys that no query may
attend to, such as the unused part of a static cache, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard import masks
from regard.masks import Mask


@final
@dataclass(frozen=True)
class VisibleKeys:
    """Keys ``first`` to ``stop`` - 1, and the mask that holds among them; ``stop`` None is all of them."""

    mask: Mask | None
    first: int = 0
    stop: int | None = None

    def narrow(self, tensor: Tensor, dim: int) -> Tensor:
        """Narrow an axis of keys, unless its size is 1."""
        if (self.first == 0 and self.stop is None) or tensor.shape[dim] == 1:
            return tensor
        stop = tensor.shape[dim] if self.stop is None else self.stop
        return tensor.narrow(dim, self.first, stop - self.first)


def recognize(allowed: Bool[Tensor, "batch heads queries keys"]) -> VisibleKeys:
    """Find the simplest mask that equals ``allowed``; its values must be readable."""
    queries, keys = allowed.shape[-2:]
    cells = narrow_expanded(allowed)
    if bool(cells.all()):
        return VisibleKeys(None)
    if cells.shape[1] > 1 and bool((cells == cells[:, :1]).all()):
        cells = cells[:, :1]
    # Along keys the size counts: an expanded row is an interval of all keys, or of none.
    rows = cells.expand(*cells.shape[:3], keys)
    intervals = _find_intervals(rows) if cells.numel() and cells.shape[1] == 1 else None
    found = None if intervals is None else _find_band_and_padding(*intervals, queries, keys)
    return VisibleKeys(masks.keep(cells)) if found is None else found


def narrow_expanded(tensor: Tensor) -> Tensor:
    """Narrow axes along which a tensor was expanded to size 1, so that no element is read twice."""
    for dim, (stride, size) in enumerate(zip(tensor.stride(), tensor.shape, strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _find_intervals(
    cells: Bool[Tensor, "batch 1 queries keys"],
) -> tuple[Int[Tensor, "batch queries"], Int[Tensor, "batch queries"]] | None:
    """First visible key and the key after the last one, 0 and 0 in rows without any; None if a row has a gap."""
    cells = cells[:, 0]
    count = cells.sum(-1)
    rises = torch.count_nonzero(cells[..., 1:] & ~cells[..., :-1]) + torch.count_nonzero(cells[..., 0])
    if int(rises) != int(torch.count_nonzero(count)):
        return None
    first = cells.to(torch.uint8).argmax(-1)
    return first, first + count


def _find_band_and_padding(
    first: Int[Tensor, "batch rows"], stop: Int[Tensor, "batch rows"], queries: int, keys: int
) -> VisibleKeys | None:
    """Find the band and the padding that give these intervals; None if there are none.

    ``rows`` is 1 if all queries have the same interval.
    """
    visible = stop > first
    row = torch.arange(first.shape[1], device=first.device)
    start = first.masked_fill(~visible, keys).amin(1)
    end = stop.amax(1)
    low, high, left, right = (
        int(bound)
        for bound in torch.stack(
            (
                (first - row).masked_fill(~visible, keys).amin(),
                (stop - 1 - row).masked_fill(~visible, -keys).amax(),
                start.amin(),
                end.amax(),
            )
        ).tolist()
    )
    if right == 0:  # nothing is visible at all
        return None
    # A bound that no query reaches is none.
    bounded_below = low + len(row) - 1 > left
    bounded_above = high + 1 < right
    lower = torch.maximum(start[:, None], row + low) if bounded_below else start[:, None]
    upper = torch.minimum(end[:, None], row + high + 1) if bounded_above else end[:, None]
    same = (lower == first) & (upper == stop)
    if not bool(torch.where(visible, same, lower >= upper).all()):
        return None
    offset = right - left - queries  # of the last query to the last key, among the visible keys
    before = offset - (low - left) if bounded_below else None
    after = (high - left) - offset if bounded_above else None
    if (before is not None and before < 0) or (after is not None and after < 0):
        return None
    parts: list[Mask] = []
    if before is not None or after is not None:
        parts.append(masks.window(before, after))
    if bool((start > left).any()):
        parts.append(masks.padding((right - start).clamp(min=0, max=right - left), side="left"))
    if bool((end < right).any()):
        parts.append(masks.padding((end - left).clamp(min=0)))
    whole = None
    for part in parts:
        whole = part if whole is None else whole & part
    return VisibleKeys(whole, left, right if right < keys else None)
