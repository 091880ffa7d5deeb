"""Batches of token sequences: sequences of similar length together, to reduce padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from regard.text.length_batches import cut_batches


def batch_by_length(lengths: Sequence[int], *, tokens: int, most: int | None = None) -> Iterator[list[int]]:
    """Yield the indices of the sequences, the longest first, in batches of at most ``tokens``, padding included.

    A longer sequence is a batch of its own. ``most`` is the maximum of sequences in a batch; None is no limit.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    for batch in cut_batches([lengths[index] for index in order], tokens=tokens, size=most):
        yield order[batch]


def pad_rows(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> Int[Tensor, "rows length"]:
    """Stack rows of ids into one tensor, padded on the right with ``pad_id``."""
    tensors = [torch.tensor(row) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=pad_id).to(device)
