"""Batches of sequences of similar length, so that little of a batch is padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby


def cut_batches(
    lengths: Sequence[int], *, tokens: int, size: int | None = None, padding: int | None = None
) -> Iterator[slice]:
    """Cut a list of sequences, in its order, into batches; yield the slice of each.

    Args:
        lengths: the number of tokens of each sequence, sorted by whoever wants little padding.
        tokens: the most tokens of a batch, padding included. A longer sequence is a batch of its own.
        size: the most sequences of a batch; None is no limit.
        padding: the most padding tokens of a batch; None is no limit.
    """
    first = longest = total = 0
    for place, length in enumerate(lengths):
        count = place - first + 1
        padded = max(longest, length) * count
        is_full = padded > tokens or (size is not None and count > size)
        if place > first and (is_full or (padding is not None and padded - total - length > padding)):
            yield slice(first, place)
            first, longest, total = place, 0, 0
        longest = max(longest, length)
        total += length
    if first < len(lengths):
        yield slice(first, len(lengths))


def group_lengths(lengths: Sequence[int], *, equal: bool = False) -> list[list[int]]:
    """The numbers of sequences, the longest first: in one group, or in one for each length if ``equal``."""
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    if not equal:
        return [order] if order else []
    return [list(group) for _, group in groupby(order, lengths.__getitem__)]
