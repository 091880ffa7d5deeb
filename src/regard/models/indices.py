"""Token ids, and other indices of tokens, checked before an embedding reads them."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.errors import DtypeError, OptionError, ShapeError


def check_indices(name: str, indices: object, size: int) -> None:
    """Raise DtypeError, ShapeError or OptionError unless ``indices`` are (batch, length), 0 to size - 1."""
    if not isinstance(indices, Tensor):
        raise DtypeError(
            "a model reads token ids",
            expected="ids (batch, length), a tensor of integers",
            got=type(indices).__name__,
            do="batch = model.tokenizer.encode(texts); model(batch.ids, mask=batch.mask)",
        )
    if indices.dim() != 2:
        raise ShapeError(
            f"{name} have another shape",
            expected="(batch, length)",
            got=str(tuple(indices.shape)),
            do="for one text add a batch dimension: ids[None]",
        )
    if indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool:
        raise DtypeError(f"{name} are whole numbers", expected="torch.long", got=str(indices.dtype), do="use .long()")
    # Elsewhere the check would wait for the device.
    if indices.device.type == "cpu" and indices.numel() and not 0 <= indices.min() <= indices.max() < size:
        raise OptionError(
            f"{name} are out of range",
            expected=f"0 to {size - 1}",
            got=f"{int(indices.min())} to {int(indices.max())}",
            do="use the tokenizer that belongs to the model: model.tokenizer.encode(texts)",
        )
