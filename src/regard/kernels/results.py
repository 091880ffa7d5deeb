"""Dtype and memory layout of the results of kernels."""

from __future__ import annotations

import torch
from torch import Tensor


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of sums, lse, tables and the gradients of biases: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def empty_token_major(like: Tensor, length: int, width: int) -> Tensor:
    """Make an uninitialized tensor (batch, heads, length, width), with batch, heads and dtype of ``like``.

    It is stored as (batch, length, heads, width), so that merging the heads, as every layer does, needs no copy.
    """
    batch, heads, _, _ = like.shape
    return like.new_empty_strided((batch, heads, length, width), (length * heads * width, width, heads * width, 1))


def empty_like_tokens(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Allocate a tensor like each of (batch, heads, length, size), in the layout of results: for gradients."""
    return tuple(empty_token_major(tensor, tensor.shape[2], tensor.shape[3]) for tensor in tensors)
