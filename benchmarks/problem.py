"""One problem of exact attention: its sizes, its tensors, and what one solution costs.

    forward     2 pairs (head_dim + value_dim)                   scores, and the weighted sum of values
    backward    2 pairs (3 head_dim + 2 value_dim)               scores again, dQ, dK; dV, and dWeights

operations (a multiply-add is two), where pairs is the number of (query, key) pairs that the mask allows, of all heads.
This is the count of Dao 2023 (FlashAttention-2), section 4.1: 4 N^2 d forward, 2.5 times that backward, half if causal.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from benchmarks.mask_patterns import DENSE, Pattern
from regard import positions

DTYPE_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
"""Short names of dtypes."""


@final
@dataclass(frozen=True)
class Setting:
    """Sizes and options. ``keys`` None: as many as queries; ``t5``: with a trained T5 bias."""

    dtype: torch.dtype
    queries: int
    keys: int | None = None
    batch: int = 1
    heads: int = 8
    key_heads: int | None = None
    head_dim: int = 64
    value_dim: int | None = None
    pattern: Pattern = DENSE
    dropout: float = 0.0
    t5: bool = False
    backward: bool = False

    def __str__(self) -> str:
        heads = f"{self.heads} heads of {self.head_dim}"
        if self.key_heads is not None:
            heads = f"{self.heads} query and {self.key_heads} key heads of {self.head_dim}"
        if self.value_dim is not None:
            heads += f" (values {self.value_dim})"
        queries = f"{self.queries:,} quer{'y' if self.queries == 1 else 'ies'}"
        lengths = f"{queries} and keys" if self.keys is None else f"{queries}, {self.keys:,} keys"
        return f"batch {self.batch}, {heads}, {lengths}"


@final
class Problem:
    """Random tensors of a setting, from a fixed seed; they require grad if there is a backward pass."""

    def __init__(self, setting: Setting, *, seed: int = 2017) -> None:
        self.setting = setting
        self._generator = torch.Generator().manual_seed(seed)
        keys = setting.queries if setting.keys is None else setting.keys
        key_heads = setting.heads if setting.key_heads is None else setting.key_heads
        value_dim = setting.head_dim if setting.value_dim is None else setting.value_dim
        self.keys, self.key_heads, self.value_dim = keys, key_heads, value_dim
        self.query = self._random_leaf(setting.batch, setting.heads, setting.queries, setting.head_dim)
        self.key = self._random_leaf(setting.batch, key_heads, keys, setting.head_dim)
        self.value = self._random_leaf(setting.batch, key_heads, keys, value_dim)
        self.grad_output = self._random_normal(setting.batch, setting.heads, setting.queries, value_dim)
        self.scale = setting.head_dim**-0.5

    @cached_property
    def bias(self) -> positions.T5Buckets | None:
        """The trained bias, whose weights are as large as the scores, so that they have an effect."""
        if not self.setting.t5:
            return None
        bias = positions.T5Buckets(self.setting.heads).to(self.setting.dtype)
        with torch.no_grad():
            bias.weight.copy_(self._random_normal(*bias.weight.shape))
        return bias

    @property
    def leaves(self) -> dict[str, Tensor]:
        """The tensors that get a gradient, by name."""
        bias = {} if self.bias is None else {"bias": self.bias.weight}
        return {"query": self.query, "key": self.key, "value": self.value} | bias

    @property
    def pairs(self) -> int:
        """Number of allowed (query, key) pairs, over batch and heads."""
        return self.setting.heads * self.setting.pattern.pairs(self.setting.batch, self.setting.queries, self.keys)

    @property
    def operations(self) -> int:
        """Number of operations of one solution, forward or forward and backward."""
        head_dim, value_dim = self.setting.head_dim, self.value_dim
        backward = 3 * head_dim + 2 * value_dim if self.setting.backward else 0
        return 2 * self.pairs * (head_dim + value_dim + backward)

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values."""
        return (self.key.numel() + self.value.numel()) * self.key.element_size()

    def _random_leaf(self, *shape: int) -> Tensor:
        return self._random_normal(*shape).requires_grad_(self.setting.backward)

    def _random_normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator).to(self.setting.dtype)
