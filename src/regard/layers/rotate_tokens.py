"""Rotation of the queries or keys of a layer by their positions, which may start elsewhere for each sequence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.errors import ShapeError
from regard.positions.base import Rotation


def rotate_tokens(position: Rotation, tokens: Tensor, offsets: Sequence[int] | Tensor, *, parts: int = 1) -> Tensor:
    """Rotate each of ``parts`` equal parts of tokens (batch, heads, length, head_dim).

    Positions start at one offset per batch entry, or at one for all; a tensor (length,) has the position of each token.
    Raises ShapeError for another number of offsets.
    """
    if parts > 1:
        tokens = tokens.unflatten(-1, (parts, -1)).transpose(2, 3)
        return _rotate(position, tokens, offsets).transpose(2, 3).flatten(3)
    return _rotate(position, tokens, offsets)


def _rotate(position: Rotation, tokens: Tensor, offsets: Sequence[int] | Tensor) -> Tensor:
    """Rotate tokens (batch, .., length, size)."""
    if isinstance(offsets, Tensor):
        return position.rotate_at(tokens, offsets)
    if len(set(offsets)) < 2:
        rotated: Tensor = position(tokens, offset=offsets[0] if offsets else 0)
        return rotated
    if len(offsets) != len(tokens):
        raise ShapeError(
            "tokens and the cache have different batch sizes",
            expected=f"tokens of {len(offsets)} sequences, as in the cache",
            got=str(len(tokens)),
            do="select the sequences to continue with cache.reordered(...)",
        )
    parts = zip(tokens.split(1), offsets, strict=True)
    return torch.cat([position(part, offset=offset) for part, offset in parts])
