"""Means of segments of visible tokens, whose sizes differ by at most one.

The p-th of n visible tokens belongs to segment floor(p segments / n). So the segments are equal if n is divisible, and
hold at most one token each if there are fewer tokens than segments. Hidden tokens belong to no segment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.mechanisms.clean_tokens import fill_zeros


@final
@dataclass(frozen=True, eq=False)
class Segments:
    """Segments of the tokens of each text and head; ``shown`` is None if all tokens are visible, ``counts`` then too.

    ``shares`` has 1 / count in the columns of a segment's tokens and 0 elsewhere; None if the segments are equal.
    """

    segments: int
    shown: Bool[Tensor, "#batch #heads length"] | None
    counts: Int[Tensor, "#batch #heads segments"] | None
    shares: Float[Tensor, "#batch #heads segments length"] | None

    @classmethod
    def of(
        cls, length: int, segments: int, shown: Bool[Tensor, "#batch #heads length"] | None, like: Tensor
    ) -> Segments:
        """Cut the visible tokens, of which there are ``length`` if all are, into ``segments``; dtype as ``like``."""
        if shown is None and length % segments == 0:
            return cls(segments, None, None, None)
        visible = torch.ones(1, 1, length, dtype=torch.bool, device=like.device) if shown is None else shown
        rank = visible.cumsum(-1) - 1
        number = rank * segments // visible.sum(-1, keepdim=True).clamp(min=1)
        belongs = (number[..., None, :] == torch.arange(segments, device=like.device)[:, None]) & visible[..., None, :]
        counts = belongs.sum(-1)
        shares = belongs.to(like.dtype) / counts.clamp(min=1).to(like.dtype)[..., None]
        return cls(segments, shown, counts if shown is not None else None, shares)

    def means(self, tokens: Float[Tensor, "batch heads length size"]) -> Float[Tensor, "batch heads segments size"]:
        """Compute the mean token of each segment; 0 for a segment without tokens."""
        if self.shares is None:
            return tokens.unflatten(2, (self.segments, -1)).mean(3)
        return self.shares @ fill_zeros(tokens, None if self.shown is None else ~self.shown)
