"""Compression of blocks of consecutive tokens to one token each, by trained weighted means.

    k~_b = sum_t a_t * k_(b stride + t)     per channel        v~_b = sum_t c_t v_(b stride + t)        0 <= t < block

Yuan et al. 2025, "Native sparse attention", equation 7. a = softmax over t of ``key_logits`` (block, head_dim), c =
softmax of ``value_logits`` (block,): plain means before training. The paper's compression is a small network; this one
keeps the output linear in the values, so that weights of tokens exist. Blocks overlap if stride < block, and only
complete ones are made; block is a multiple of stride.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn


@final
class BlockCompression(nn.Module):
    """Trained weighted means of blocks of keys and values, the same in all heads."""

    def __init__(self, head_dim: int, *, block: int, stride: int) -> None:
        super().__init__()
        self.block, self.stride = block, stride
        self.key_logits = nn.Parameter(torch.zeros(block, head_dim))
        self.value_logits = nn.Parameter(torch.zeros(block))

    def count(self, tokens: int) -> int:
        """Count the blocks of ``tokens`` tokens."""
        return max(0, (tokens - self.block) // self.stride + 1)

    def keys(self, key: Float[Tensor, "batch heads keys head_dim"]) -> Float[Tensor, "batch heads blocks head_dim"]:
        """Compress keys."""
        return self._means(key, self.key_logits.to(key.dtype).softmax(0))

    def values(self, value: Float[Tensor, "batch heads keys size"]) -> Float[Tensor, "batch heads blocks size"]:
        """Compress values."""
        return self._means(value, self.value_logits.to(value.dtype).softmax(0)[:, None].expand(-1, value.shape[3]))

    def _means(
        self, tokens: Float[Tensor, "batch heads length size"], shares: Float[Tensor, "block size"]
    ) -> Float[Tensor, "batch heads blocks size"]:
        """Compute the means; NaN, without gradients, for blocks with a token that is not finite.

        Both are filled in where there is nothing to fill too: sums over other strides may be rounded another way, and a
        hidden NaN must not change a bit.
        """
        count = self.count(tokens.shape[2])
        if count == 0:
            return tokens[:, :, :0]
        strides, whole = self.block // self.stride, (count - 1) * self.stride + self.block
        bad = ~tokens.detach()[:, :, :whole].isfinite().all(-1)
        tokens = tokens[:, :, :whole]
        parts = tokens.masked_fill(bad[..., None], 0.0).unflatten(2, (-1, self.stride))
        sums = [
            (parts[:, :, at : at + count] * shares[at * self.stride : (at + 1) * self.stride]).sum(3)
            for at in range(strides)
        ]
        means = sum(sums[1:], sums[0])
        broken = bad.unfold(2, self.block, self.stride).any(-1)
        return means.masked_fill(broken[..., None], torch.nan)
