"""The gradients of the weight and the bias of a linear layer of many tokens by the native kernel.

    dW_oi = sum_r dy_ro x_ri,   db_o = sum_r dy_ro        x (rows, inputs), dy (rows, outputs) -> dW (outputs, inputs)

Both operands of dW are read by columns. Libraries for matrix products copy the columns of one to rows first, which
takes a fifth of the time, and in oneDNN is not divided evenly between threads. The kernel needs no such copy. Sums are
float32; their bits do not depend on the number of threads. It computes gradients and has none itself.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from regard.kernels.extension import missing_reason, native
from regard.kernels.support import check_isa

MIN_ROWS = 512
"""Rows from which the kernel is faster than oneDNN, measured on AMD Zen 5: of fewer, storing the sums takes longer."""


def can_compute_weight_gradient(tokens: Tensor, gradient: Tensor) -> bool:
    """Whether the kernel was built and computes this call, in which torch must run eagerly: many float32 tokens."""
    if missing_reason is not None or tokens.dtype != torch.float32 or gradient.dtype != torch.float32:
        return False
    if tokens.shape[0] < MIN_ROWS or not (tokens.is_cpu and gradient.is_cpu):
        return False
    check_isa()
    return True


def weight_gradient(
    tokens: Float[Tensor, "rows inputs"], gradient: Float[Tensor, "rows outputs"], *, of_bias: bool
) -> tuple[Float[Tensor, "outputs inputs"], Float[Tensor, " outputs"] | None]:
    """Compute dW, and db if ``of_bias``, of a call for which ``can_compute_weight_gradient`` holds."""
    weight = tokens.new_empty(gradient.shape[1], tokens.shape[1])
    bias = tokens.new_empty(gradient.shape[1]) if of_bias else None
    threads = torch.get_num_threads()
    native.weight_gradient(tokens.contiguous(), gradient.contiguous(), weight, bias, threads=threads)
    return weight, bias
