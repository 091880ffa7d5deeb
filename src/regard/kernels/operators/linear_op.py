"""A linear layer of many tokens, and the activation after it, by the native kernel.

    y_ro = a(sum_k x_rk W_ok + b_o)          x (rows, inputs), W (outputs, inputs) -> y (rows, outputs)

Libraries divide a product between threads before they begin; the kernel's tasks go to the thread that is free, and its
blocks are chosen for the sizes that layers have. Sums are float32, rounded after the activation. The bits of an output
depend on its token alone: not on the other tokens of the call, nor on the number of threads. There is no derivative.
"""

from __future__ import annotations

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from regard.kernels.extension import missing_reason, native
from regard.kernels.operators.projection_op import MAX_TOKENS, are_dense
from regard.kernels.support import check_isa

MIN_ROWS = MAX_TOKENS + 1
"""Rows from which the kernel is faster than the kernel of ``projection_op``, which packs no weights."""
_ALIGNMENT = 4
"""Bytes that the kernel reads of a token at a time."""


def can_multiply(tokens: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the kernel was built and computes this call, in which torch must run eagerly and without gradients."""
    dtype, inputs = tokens.dtype, weight.shape[-1]
    return (
        dtype is weight.dtype
        and tokens.numel() >= MIN_ROWS * inputs > 0
        and multiplies(dtype)
        and weight.dim() == 2
        and weight.shape[0] > 0
        and tokens.shape[-1] == inputs
        and (dtype is torch.float32 or inputs % 2 == 0)
        and are_dense(tokens, weight, bias)
    )


def multiply(
    tokens: Float[Tensor, "*rows inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None,
    activation: str = "identity",
) -> Float[Tensor, "*rows outputs"]:
    """Compute a call for which ``can_multiply`` holds. The activation is one that ``layers.projection`` names."""
    rows = tokens.reshape(-1, tokens.shape[-1]).contiguous()
    if rows.data_ptr() % _ALIGNMENT:
        rows = rows.clone()
    output = rows.new_empty(rows.shape[0], weight.shape[0])
    native.linear(rows, weight, None, bias, output, activation=activation, threads=torch.get_num_threads())
    return output if tokens.dim() == 2 else output.view(*tokens.shape[:-1], weight.shape[0])


@cache
def multiplies(dtype: torch.dtype) -> bool:
    """Whether the kernel multiplies this dtype on this processor: bfloat16 where products of pairs are fast, and with
    AVX2, where torch has no fast kernel for it, and regard's widens it to float32.
    """
    if missing_reason is not None:
        return False
    check_isa()
    return dtype is torch.float32 or (dtype is torch.bfloat16 and native.isa() in ("avx512_bf16", "avx2"))
