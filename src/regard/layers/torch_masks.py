"""``attn_mask`` and ``key_padding_mask`` of ``nn.MultiheadAttention``, as one mask and one bias.

    attn_mask          (queries, keys) or (batch * heads, queries, keys)
    key_padding_mask   (batch, keys)

A bool is True where a query may NOT attend. Floats are added to the scores: -inf hides a key, and any other number is a
bias, however low: torch computes with it too, so a row of -1e9 alone has the weights of a row of 0.
``masks.from_multihead_attention`` takes those arguments as well, but refuses a bias.
"""

from __future__ import annotations

from functools import reduce
from operator import add, and_
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from regard import masks
from regard.errors import DtypeError, ShapeError, short_repr
from regard.masks import Mask
from regard.tensors import has_values


@final
class MaskAndBias(NamedTuple):
    """Which keys a query may attend to, None for all; and what is added to the scores, None for nothing."""

    mask: Mask | None
    bias: Tensor | None


def read_torch_masks(
    attn_mask: Any, key_padding_mask: Any, shape: tuple[int, int, int, int], dtype: torch.dtype
) -> MaskAndBias:
    """Read the masks of a call, for scores of a ``shape`` (batch, heads, queries, keys) and queries of a ``dtype``.

    Raises DtypeError for other kinds than bool and float tensors, and ShapeError for other shapes than torch takes.
    """
    batch, heads, queries, keys = shape
    parts = []
    if attn_mask is not None:
        _check_dtype("attn_mask", attn_mask)
        _check_shape("attn_mask", attn_mask, (queries, keys), (batch * heads, queries, keys))
        parts.append(attn_mask[None, None] if attn_mask.dim() == 2 else attn_mask.unflatten(0, (batch, heads)))
    if key_padding_mask is not None:
        _check_dtype("key_padding_mask", key_padding_mask)
        _check_shape("key_padding_mask", key_padding_mask, (batch, keys))
        parts.append(key_padding_mask[:, None, None])
    read = [_split(part, dtype) for part in parts]
    hiding = [part.mask for part in read if part.mask is not None]
    added = [part.bias for part in read if part.bias is not None]
    return MaskAndBias(reduce(and_, hiding) if hiding else None, reduce(add, added) if added else None)


def _split(part: Tensor, dtype: torch.dtype) -> MaskAndBias:
    """Split a bool or additive mask (#batch, #heads, #queries, keys)."""
    if part.dtype == torch.bool:
        return MaskAndBias(masks.blocked(part), None)
    hidden = part.detach() == -torch.inf
    bias = part.masked_fill(hidden, 0.0).to(dtype)
    if not has_values(hidden):
        return MaskAndBias(masks.blocked(hidden), bias)
    is_bias = part.requires_grad or bool(bias.any())
    return MaskAndBias(masks.blocked(hidden) if bool(hidden.any()) else None, bias if is_bias else None)


def _check_dtype(name: str, mask: Any) -> None:
    if isinstance(mask, Tensor) and (mask.dtype == torch.bool or mask.is_floating_point()):
        return
    raise DtypeError(
        f"{name} is neither a bool nor a float tensor",
        expected="bools, True where a query may not attend, or floats that are added to the scores",
        got=short_repr(mask),
        do="convert integers to bool, and check which value means may attend",
    )


def _check_shape(name: str, mask: Tensor, *shapes: tuple[int, ...]) -> None:
    if tuple(mask.shape) not in shapes:
        raise ShapeError(
            f"{name} has the wrong shape",
            expected=" or ".join(map(str, shapes)),
            got=str(tuple(mask.shape)),
            do="pass it as nn.MultiheadAttention takes it",
        )
