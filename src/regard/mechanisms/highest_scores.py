"""The highest scores of each query, the same ones on every machine.

Mechanisms that choose keys rank them by scores, and a choice must not depend on how a library orders its sums: by the
number of threads, the length of the text or the instruction set. So scores are summed in float64 and then rounded to
float32 (float64 tokens are compared in float64), and of equal ones the lowest position is chosen. Scores that are equal
in exact arithmetic are then equal, except where one in about 10^8 lies at a boundary of float32.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def rounded_scores(scores: Float[Tensor, "*shape"], dtype: torch.dtype) -> Float[Tensor, "*shape"]:
    """Round float64 scores for a comparison, for tokens of ``dtype``; a score that is NaN becomes Inf.

    So what cannot be compared is chosen first, and the NaN is not lost.
    """
    rounded = scores if dtype == torch.float64 else scores.float()
    return rounded.masked_fill(rounded.isnan(), torch.inf)


def mark_highest(
    scores: Float[Tensor, "batch heads rows keys"], candidates: Bool[Tensor, "#batch #heads #rows keys"], count: int
) -> Bool[Tensor, "batch heads rows keys"]:
    """Mark the ``count`` highest scores among the candidates of each row, of equal ones the first; all if fewer."""
    scores = scores.detach()
    candidates = candidates.expand(scores.shape)
    if count >= scores.shape[-1]:
        return candidates
    if count == 0:
        return torch.zeros_like(candidates)
    lowest = torch.finfo(scores.dtype).min
    ranked = scores.clamp(min=lowest).masked_fill(~candidates, -torch.inf)
    last = ranked.topk(count, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    above, equal = ranked > last, (ranked == last) & candidates
    left = count - above.sum(-1, keepdim=True)
    return above | (equal & (equal.cumsum(-1, dtype=torch.int32) <= left))
