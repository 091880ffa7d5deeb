"""The weights that sources get when known targets are written, for many pairs at a time.

source ids (length,), target ids (length,) -> weights (target length + 1, source length + 1), the ends included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard import masks
from regard.models import SequenceToSequence


def attended_weights(
    model: SequenceToSequence, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], *, tokens: int
) -> list[Float[Tensor, "target source"]]:
    """The weights of each pair, read in batches of about ``tokens`` on each side, padding included.

    Raises RefusedError for a model without attention.
    """
    found: list[Tensor | None] = [None] * len(pairs)
    for batch in _batches(pairs, tokens):
        sources = [[*pairs[index][0], model.end_id] for index in batch]
        targets = [[model.start_id, *pairs[index][1]] for index in batch]
        lengths = [len(ids) for ids in sources]
        mask = masks.padding(lengths) if min(lengths) < max(lengths) else None
        weights = model.attended(_padded(sources, model.device), _padded(targets, model.device), mask=mask)
        for index, own, source, target in zip(batch, weights, sources, targets, strict=True):
            found[index] = own[: len(target), : len(source)]
    return [weights for weights in found if weights is not None]


def _batches(pairs: Sequence[tuple[Sequence[int], Sequence[int]]], tokens: int) -> Iterator[list[int]]:
    """Numbers of pairs of similar length, the longest first."""
    lengths = [max(len(source), len(target)) + 1 for source, target in pairs]
    order = sorted(range(len(pairs)), key=lambda index: -lengths[index])
    while order:
        size = max(1, tokens // lengths[order[0]])
        yield order[:size]
        order = order[size:]


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> Int[Tensor, "pairs length"]:
    tensors = [torch.tensor(row, device=device) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)
