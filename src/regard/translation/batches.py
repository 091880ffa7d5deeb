"""Batches of token sequences: sequences of similar length together, to reduce padding.

Cross-attention weights of known source-target pairs (forced decoding), in batches.

source ids (length,), target ids (length,) -> weights (target length + 1, source length + 1), end tokens included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard import masks
from regard.copy_to_device import copy_to
from regard.layers.eval_mode import eval_mode
from regard.models import EncoderDecoder
from regard.text.length_batches import cut_batches


def batch_by_length(lengths: Sequence[int], *, tokens: int, size: int | None = None) -> Iterator[list[int]]:
    """Yield the indices of the sequences, the longest first, in batches of at most ``tokens``, padding included.

    A longer sequence is a batch of its own. ``size`` is the maximum of sequences in a batch; None is no limit.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    for batch in cut_batches([lengths[index] for index in order], tokens=tokens, size=size):
        yield order[batch]


def pad_rows(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> Int[Tensor, "rows length"]:
    """Stack rows of ids into one tensor, padded on the right with ``pad_id``."""
    tensors = [torch.tensor(row) for row in rows]
    return copy_to(torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=pad_id), device)


def cross_attention_weights(
    model: EncoderDecoder, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], *, tokens: int
) -> list[Float[Tensor, "target source"]]:
    """Compute the weights of each pair, in batches of about ``tokens`` on each side, padding included.

    Runs the model in eval mode. Raises RefusedError for a model without attention.
    """
    by_index: dict[int, Tensor] = {}
    for batch in batch_by_length([max(len(source), len(target)) + 1 for source, target in pairs], tokens=tokens):
        sources = [[*pairs[index][0], model.end_id] for index in batch]
        targets = [[model.target_start_id, *pairs[index][1]] for index in batch]
        lengths = [len(ids) for ids in sources]
        mask = masks.padding(lengths) if min(lengths) < max(lengths) else None
        with eval_mode(model):
            ids = (pad_rows(rows, model.pad_id, model.device) for rows in (sources, targets))
            weights = model.cross_attention_weights(*ids, mask=mask)
        for index, own, source, target in zip(batch, weights, sources, targets, strict=True):
            by_index[index] = own[: len(target), : len(source)].clone()  # a view would keep the whole batch alive
    return [by_index[index] for index in range(len(pairs))]
