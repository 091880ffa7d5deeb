"""Sigmoid attention: the fused kernels, and plain torch.

    o_i = sum_j w_ij v_j        w_ij = sigmoid(scale * q_i . k_j + bias_ij + b_i)

Ramapuram et al. 2025, section 2. b_i is the ``score_bias`` that implementations take beside the request; if it is None,
-log of the number of keys that query i may attend to. ``operators.sigmoid_op`` is the kernel.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from regard.kernels.implementation import Implementation
from regard.kernels.implementations.native import dot_product_unsupported_reason
from regard.kernels.operators.kernel_arguments import to_kernel_arguments
from regard.kernels.operators.sigmoid_op import sigmoid_attention
from regard.kernels.reference import sigmoid as reference_sigmoid
from regard.kernels.request import Request


def _native(request: Request, score_bias: float | None) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute sigmoid attention with the kernel."""
    scaled = request.with_rebalanced_scale
    output = sigmoid_attention(scaled.query, scaled.key, scaled.value, score_bias, to_kernel_arguments(scaled))
    return output if scaled is request else output.to(request.query.dtype)


NATIVE = Implementation(
    "native", _native, dot_product_unsupported_reason, merit="regard's own kernels, made for this CPU"
)
REFERENCE = Implementation(
    "reference", reference_sigmoid.compute_output, merit="plain torch, on any device and for every bias"
)
