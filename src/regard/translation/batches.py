"""Batches of token sequences: sequences of similar length together, to reduce padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Int
from torch import Tensor


def batch_by_length(lengths: Sequence[int], *, tokens: int, most: int | None = None) -> Iterator[list[int]]:
    """Yield the indices of the sequences, the longest first, in batches of at most ``tokens``, padding included.

    A longer sequence is a batch of its own. ``most`` is the maximum of sequences in a batch; None is no limit.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    while order:
        size = max(1, tokens // lengths[order[0]])
        size = size if most is None else min(size, most)
        yield order[:size]
        order = order[size:]


def pad_rows(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> Int[Tensor, "rows length"]:
    """Stack rows of ids into one tensor, padded on the right with ``pad_id``."""
    tensors = [torch.tensor(row) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=pad_id).to(device)
