"""T5 relative bias: a trained number per head and bucket of distances; buckets are exact near, logarithmic far.

    bucket(n) = n                                                      n < exact
              = exact + floor(ln(n/exact) / ln(max_distance/exact) * (buckets - exact)), at most buckets - 1

Raffel et al. 2020, section 2.1. With ``bidirectional`` (encoders) half the buckets are for keys after the
query; without it (decoders) keys after the query share bucket 0. ``exact`` is half the buckets of one direction.
"""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.arguments import explain_arguments
from regard.errors import OptionError, check_flag, check_sizes
from regard.positions.base import DistanceBias


@final
@explain_arguments
class T5Buckets(DistanceBias):
    """T5 relative bias: a trained number per bucket and head. ``weight`` is (buckets, heads), as in T5 checkpoints."""

    def __init__(self, heads: int, *, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True) -> None:
        super().__init__()
        check_sizes(heads=heads, buckets=buckets, max_distance=max_distance)
        check_flag("bidirectional", bidirectional)
        exact = buckets // (4 if bidirectional else 2)
        if exact < 1 or max_distance <= exact:
            raise OptionError(
                "sizes of T5 buckets do not fit",
                expected="at least 4 buckets (2 with bidirectional=False), and a max_distance beyond the exact ones",
                got=f"buckets={buckets}, max_distance={max_distance}",
                do="the published values are buckets=32, max_distance=128",
            )
        self.heads, self.buckets, self.max_distance, self.bidirectional = (
            heads,
            buckets,
            max_distance,
            bidirectional,
        )
        self.weight = nn.Parameter(torch.randn(buckets, heads) * 0.02)

    def bucket(self, distance: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Compute the bucket of each distance ``key - position(query)``."""
        side = self.buckets // 2 if self.bidirectional else self.buckets
        after = (distance > 0).long() * side if self.bidirectional else torch.zeros_like(distance)
        away = distance.abs() if self.bidirectional else (-distance).clamp(min=0)
        exact = side // 2
        # float32, as in the published code: at exact powers rounding decides the bucket, as in trained checkpoints
        ratio = (away.clamp(min=1).float() / exact).log() / math.log(self.max_distance / exact)
        far = (exact + (ratio * (side - exact)).long()).clamp(max=side - 1)
        return after + torch.where(away < exact, away, far)

    def table(self, lowest: int, highest: int) -> Float[Tensor, "heads distances"]:
        """Look up the bias of each distance's bucket."""
        distance = torch.arange(lowest, highest + 1, device=self.weight.device)
        # Not by indexing: its gradient would use atomic additions, in the order in which threads arrive.
        return functional.embedding(self.bucket(distance), self.weight).T

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"heads={self.heads}, buckets={self.buckets}, max_distance={self.max_distance}"
