"""The highest scores of each query, the same ones on every machine.

Mechanisms that choose keys rank them by scores, and a choice must not depend on how a library orders its sums: by the
number of threads, the length of the text or the instruction set. So scores are summed in float64 and then rounded to
float32 (float64 tokens are compared in float64), and of equal ones the lowest position is chosen. Scores that are equal
in exact arithmetic are then equal, except where one in about 10^8 lies at a boundary of float32.

``mark_highest`` does that for scores in plain torch. ``choose_highest`` chooses the same keys by a kernel that computes
few pairs in float64: it compares float32 products, with a bound of their error, and decides the others by the scores
above (``kernels.operators.highest_keys_op``).
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int32
from torch import Tensor

from regard.kernels.operators.highest_keys_op import highest_keys
from regard.kernels.operators.kernel_arguments import to_kernel_arguments
from regard.kernels.request import Request
from regard.kernels.support import MAX_HEAD_DIM, unsupported_reason


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


def choose_highest(
    request: Request,
    query: Float[Tensor, "batch score_heads queries size"],
    key: Float[Tensor, "batch key_heads keys size"],
    weight: Float[Tensor, "batch score_heads queries 1"] | None,
    first: Bool[Tensor, "batch #heads 1 keys"] | None,
    count: int,
    *,
    summed: bool,
) -> Int32[Tensor, "batch #heads queries count"] | None:
    """Choose the ``count`` keys with the highest scores that the mask of a request allows, by the kernel.

    The arguments are the same as for ``highest_keys``. With ``summed``, one choice is made for all heads if their masks
    and ``first`` are the same. Returns positions, ascending, with -1 behind; None if the kernel does not take the
    tensors.
    """
    given = [query, key] + [tensor for tensor in (weight, first) if tensor is not None]
    if unsupported_reason(*given) is not None or query.dtype == torch.float64:
        return None
    if not 0 < query.shape[3] <= MAX_HEAD_DIM or 0 in query.shape or count >= 2**27:
        return None
    terms = to_kernel_arguments(request.replace(bias=None, dropout=0.0, inputs={}))
    heads = query.shape[1]
    if summed:
        of_heads = [tensor.shape[1] for tensor in (terms.row_start, first) if tensor is not None]
        if terms.dense is not None and terms.dense.dim() > 2:
            of_heads.append(terms.dense.shape[-3])
        heads = request.query.shape[1] if any(number > 1 for number in of_heads) else 1
    return highest_keys(query, key, weight, first, terms, count=count, heads=heads, summed=summed)
