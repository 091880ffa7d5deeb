"""The most probable class of each row of logits by the native kernel, as in a step of greedy search.

    c = argmax x_v over the v that are not banned,    log p_c = x_c - m - ln sum_v exp(x_v - m),    m = max_v x_v

logits x (rows, classes), banned (any number of classes) -> classes c (rows), log_probability (rows), in float32, or
float64 for float64. Two passes over a row that is in the cache, in place of the log-probabilities of all classes, which
torch writes to memory twice. There is no derivative.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd import forward_ad

from regard.kernels.extension import native
from regard.kernels.operators.projection_op import is_fast
from regard.kernels.results import accumulation_dtype
from regard.kernels.tracing import any_requires_grad, is_eager

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def can_find(logits: Tensor, banned: Tensor) -> bool:
    """Whether the kernel computes this call: logits on a CPU with AVX2 or better, without gradients."""
    return (
        logits.dtype in _DTYPES
        and logits.numel() > 0
        and logits.is_cpu
        and logits.layout is torch.strided
        and not any_requires_grad(logits)
        and is_eager(logits, banned)
        and forward_ad._current_level < 0
        and is_fast()
    )


def find_likeliest(
    logits: Float[Tensor, "rows classes"], banned: Int[Tensor, " banned"]
) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"]]:
    """Find the most probable class of each row, and its log-probability, for a call for which ``can_find`` holds.

    Of equal logits the first is found. A row with a NaN has a log-probability of NaN; one without an allowed class has
    class 0 and -infinity. Raises ValueError for a banned class that does not exist.
    """
    rows = len(logits)
    classes = banned.new_empty(rows, dtype=torch.long)
    log_probability = logits.new_empty(rows, dtype=accumulation_dtype(logits.dtype))
    native.likeliest_class(logits.contiguous(), banned, classes, log_probability, threads=torch.get_num_threads())
    return classes, log_probability
