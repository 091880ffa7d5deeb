"""The dtype and the memory of what kernels compute."""

from __future__ import annotations

import torch
from torch import Tensor


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums are taken in, and that lse, tables and the gradients of biases have."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def empty_token_major(like: Tensor, length: int, width: int) -> Tensor:
    """An empty tensor (batch, heads, length, width), batch, heads and dtype as in ``like``.

    It is stored as (batch, length, heads, width): joining the heads again, as every layer does, then copies nothing.
    """
    batch, heads, _, _ = like.shape
    return like.new_empty_strided((batch, heads, length, width), (length * heads * width, width, heads * width, 1))
