"""Talking-heads attention: the fused kernels, and plain torch.

    w_f = sum_g softmax(sum_h scale * q_h . k_h P_hg + bias_g) R_gf        o_f = sum_j w_fj v_fj

Shazeer et al. 2020, section 4. Implementations take P and R (heads, heads) beside the request; the kernel takes a mask
that is the same for all heads.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from regard.kernels.implementation import Implementation
from regard.kernels.implementations.native import request_unsupported_reason
from regard.kernels.operators.kernel_arguments import to_kernel_arguments
from regard.kernels.operators.score_op import ScoreOperator
from regard.kernels.reference import talking_heads as reference_talking_heads
from regard.kernels.reference.talking_heads import HeadMixing
from regard.kernels.request import Request
from regard.kernels.results import accumulation_dtype

TALKING_HEADS = ScoreOperator(
    "talking_heads", "talking_heads", ("query", "key", "value", "score_mixing", "weight_mixing")
)
"""regard::talking_heads and its backward pass."""


def _native(request: Request, mixing: HeadMixing) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute talking-heads attention with the kernel."""
    scaled = request.with_rebalanced_scale
    matrices = (matrix.to(accumulation_dtype(request.query.dtype)) for matrix in (mixing.scores, mixing.weights))
    output = TALKING_HEADS(scaled.query, scaled.key, scaled.value, *matrices, terms=to_kernel_arguments(scaled))
    return output if scaled is request else output.to(request.query.dtype)


NATIVE = Implementation("native", _native, request_unsupported_reason, why_chosen="the fused kernel, made for this CPU")
REFERENCE = Implementation(
    "reference", reference_talking_heads.compute_output, why_chosen="plain torch, on any device and for every bias"
)
