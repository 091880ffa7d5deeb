"""Talking-heads attention: the fused kernels, and plain torch.

    w_f = sum_g softmax(sum_h scale * q_h . k_h P_hg + bias_g) R_gf        o_f = sum_j w_fj v_fj

Shazeer et al. 2020, section 4. Implementations take P and R beside the request. ``operators.talking_heads_op`` is the
kernel.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from regard.kernels.implementation import Implementation
from regard.kernels.implementations.native import request_unsupported_reason
from regard.kernels.operators.kernel_arguments import to_kernel_arguments
from regard.kernels.operators.talking_heads_op import talking_heads_attention
from regard.kernels.reference import talking_heads as reference_talking_heads
from regard.kernels.reference.talking_heads import HeadMixing
from regard.kernels.request import Request


def _native(request: Request, mixing: HeadMixing) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute talking-heads attention with the kernel."""
    scaled = request.with_rebalanced_scale
    output = talking_heads_attention(
        scaled.query, scaled.key, scaled.value, mixing.scores, mixing.weights, to_kernel_arguments(scaled)
    )
    return output if scaled is request else output.to(request.query.dtype)


NATIVE = Implementation("native", _native, request_unsupported_reason, merit="the fused kernel, made for this CPU")
REFERENCE = Implementation(
    "reference", reference_talking_heads.compute_output, merit="plain torch, on any device and for every bias"
)
