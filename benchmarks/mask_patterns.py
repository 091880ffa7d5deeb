"""Mask patterns in each library's form: a mask of regard, arguments of torch, cells for the float64 reference.

The cells are computed here from their definition, independently of regard, so that an error in a mask is detected.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from regard import masks


class Pattern(ABC):
    """A pattern of allowed (query, key) pairs. There are as many queries as keys, or one query after all keys."""

    @abstractmethod
    def mask(self) -> masks.Mask | None:
        """Return the pattern as a mask of regard, or None for no mask."""

    @abstractmethod
    def cells(self, entries: Tensor, rows: Tensor, keys: int) -> Tensor | None:
        """Which keys the queries ``rows`` of the batch ``entries`` may see, as bools; None: all."""

    @abstractmethod
    def pairs(self, batch: int, queries: int, keys: int) -> int:
        """Number of allowed pairs, over the whole batch."""

    def sdpa(self, keys: int) -> dict[str, Any]:
        """Return the arguments of torch's ``scaled_dot_product_attention``."""
        raise NotImplementedError(
            f"torch's attention has no {type(self).__name__.lower()} without queries x keys cells"
        )

    def flex(self) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None:
        """Return the ``mask_mod`` of FlexAttention; None: no mask."""
        raise NotImplementedError(f"not measured: FlexAttention with {type(self).__name__.lower()}")


@final
@dataclass(frozen=True)
class Dense(Pattern):
    """Every query sees every key."""

    def mask(self) -> None:
        """Return None: no mask."""
        return

    def cells(self, entries: Tensor, rows: Tensor, keys: int) -> None:
        """Return None: all keys are visible."""
        del entries, rows, keys

    def pairs(self, batch: int, queries: int, keys: int) -> int:
        """Count all pairs."""
        return batch * queries * keys

    def sdpa(self, keys: int) -> dict[str, Any]:
        """Return no mask."""
        del keys
        return {}

    def flex(self) -> None:
        """Return no mask."""
        return


DENSE = Dense()
"""The dense pattern."""


@final
@dataclass(frozen=True)
class Causal(Pattern):
    """key <= query."""

    def mask(self) -> masks.Mask:
        """Return ``masks.causal()``."""
        return masks.causal()

    def cells(self, entries: Tensor, rows: Tensor, keys: int) -> Tensor:
        """Evaluate the definition."""
        del entries
        return (torch.arange(keys) <= rows[:, None])[None, None]

    def pairs(self, batch: int, queries: int, keys: int) -> int:
        """Count the pairs of a triangle with its diagonal."""
        del keys
        return batch * queries * (queries + 1) // 2

    def sdpa(self, keys: int) -> dict[str, Any]:
        """Return ``is_causal``."""
        del keys
        return {"is_causal": True}

    def flex(self) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """Evaluate the definition."""
        return lambda batch, head, query, key: key <= query


@final
@dataclass(frozen=True)
class Padded(Pattern):
    """Batch entry b has ``lengths[b]`` tokens; keys after them are hidden."""

    lengths: tuple[int, ...]

    def mask(self) -> masks.Mask:
        """Return ``masks.padding``."""
        return masks.padding(self.lengths)

    def cells(self, entries: Tensor, rows: Tensor, keys: int) -> Tensor:
        """Evaluate the definition."""
        del rows
        return self._tokens(keys)[entries][:, None, None, :]

    def pairs(self, batch: int, queries: int, keys: int) -> int:
        """Count visible keys for all queries, padded ones too; torch also computes hidden keys."""
        del batch, keys
        return queries * sum(self.lengths)

    def sdpa(self, keys: int) -> dict[str, Any]:
        """Return a bool mask (batch, 1, 1, keys), the smallest that torch accepts."""
        return {"attn_mask": self._tokens(keys)[:, None, None, :]}

    def _tokens(self, keys: int) -> Tensor:
        return torch.arange(keys) < torch.tensor(self.lengths)[:, None]


@final
@dataclass(frozen=True)
class Window(Pattern):
    """-left <= key - query <= right."""

    left: int
    right: int

    def mask(self) -> masks.Mask:
        """Return ``masks.window``."""
        return masks.window(self.left, self.right)

    def cells(self, entries: Tensor, rows: Tensor, keys: int) -> Tensor:
        """Evaluate the definition."""
        del entries
        distance = torch.arange(keys) - rows[:, None]
        return ((distance >= -self.left) & (distance <= self.right))[None, None]

    def pairs(self, batch: int, queries: int, keys: int) -> int:
        """Count the pairs row by row, with the window cut at both ends."""
        row = torch.arange(queries)
        seen = (row + self.right).clamp(max=keys - 1) - (row - self.left).clamp(min=0) + 1
        return batch * int(seen.sum())

    def flex(self) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """Evaluate the definition."""
        left, right = self.left, self.right
        return lambda batch, head, query, key: (key - query >= -left) & (key - query <= right)
