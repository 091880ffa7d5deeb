"""Sigmoid attention: the fused kernels, and plain torch.

    o_i = sum_j w_ij v_j        w_ij = sigmoid(scale * q_i . k_j + bias_ij + b_i)

Ramapuram et al. 2025, section 2. b_i is the ``score_bias`` that implementations take beside the request; if it is None,
-log of the number of keys that query i may attend to. The kernel's normalizer is b_i of each query, and whether its
result is finite; dscore_ij = w_ij (1 - w_ij) dO_i . v_j.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from regard.kernels.implementation import Implementation
from regard.kernels.implementations.native import dot_product_unsupported_reason
from regard.kernels.operators.kernel_arguments import to_kernel_arguments
from regard.kernels.operators.score_op import ScoreOperator
from regard.kernels.reference import sigmoid as reference_sigmoid
from regard.kernels.request import Request

SIGMOID_ATTENTION = ScoreOperator("sigmoid_attention", "sigmoid", ("query", "key", "value"), numbers=("score_bias",))
"""regard::sigmoid_attention and its backward pass."""


def _native(request: Request, score_bias: float | None) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute sigmoid attention with the kernel."""
    scaled = request.with_rebalanced_scale
    terms = to_kernel_arguments(scaled)
    output = SIGMOID_ATTENTION(scaled.query, scaled.key, scaled.value, score_bias, terms=terms)
    return output if scaled is request else output.to(request.query.dtype)


NATIVE = Implementation(
    "native", _native, dot_product_unsupported_reason, why_chosen="regard's own kernels, made for this CPU"
)
REFERENCE = Implementation(
    "reference", reference_sigmoid.compute_output, why_chosen="plain torch, on any device and for every bias"
)
