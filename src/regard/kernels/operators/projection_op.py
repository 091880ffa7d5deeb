"""A linear layer of few tokens by the native kernel, as in a decoding step, which takes as long as reading the weights.

    y_ro = sum_k x_rk W_ok + b_o          x (.., inputs), W (outputs, inputs) -> y (.., outputs)

Weights are in the dtype of the tokens; those of few bits have ``integer_linear_op``. Sums are float32, rounded once.
The bits of an output depend on its token alone: not on the other tokens of the call, nor on the number of threads.
There is no derivative, and under ``torch.compile`` callers use torch.
"""

from __future__ import annotations

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from regard.kernels.extension import missing_reason, native
from regard.kernels.support import check_isa, is_portable
from regard.kernels.tracing import any_requires_grad, is_plain_call

MAX_TOKENS: int = 0 if native is None else native.few_tokens
"""Number of tokens up to which the kernel is faster than matrix products."""
_MIN_WEIGHTS = 2**14
"""Number of weights from which it is faster: of fewer, a call takes longer than the products."""
DTYPES = (torch.float32, torch.bfloat16)
"""Dtypes of tokens."""
_MAX_DIMENSIONS = 4
"""Dimensions of tokens that the kernel takes; all but the last are rows."""


def can_project(tokens: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the kernel computes this call: few tokens on a CPU, without gradients, and dense weights that fit."""
    dtype, inputs = tokens.dtype, weight.shape[-1]
    return (
        0 < tokens.numel() <= MAX_TOKENS * inputs
        and dtype in DTYPES
        and weight.dtype is dtype
        and weight.numel() >= _MIN_WEIGHTS
        and tokens.shape[-1] == inputs
        and weight.dim() == 2
        and not any_requires_grad(tokens, weight, bias)
        and are_dense(tokens, weight, bias)
        and is_plain_call(tokens, weight, bias)
        and is_fast()
    )


def are_dense(tokens: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether tensors are dense and on a CPU, parameters contiguous, and the bias in the dtype of the tokens."""
    return (
        tokens.is_cpu
        and weight.is_cpu
        and tokens.layout is weight.layout is torch.strided
        and weight.is_contiguous()
        and (bias is None or (bias.dtype is tokens.dtype and bias.is_cpu and bias.is_contiguous()))
    )


def project(
    tokens: Float[Tensor, "*rows inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None,
) -> Float[Tensor, "*rows outputs"]:
    """Compute a call for which ``can_project`` holds."""
    rows = tokens.contiguous() if tokens.dim() <= _MAX_DIMENSIONS else tokens.flatten(end_dim=-2).contiguous()
    output = rows.new_empty((*rows.shape[:-1], weight.shape[0]))
    native.project(rows, weight, None, bias, output, threads=torch.get_num_threads())
    return output if rows.dim() == tokens.dim() else output.view(*tokens.shape[:-1], weight.shape[0])


@cache
def is_fast() -> bool:
    """Whether the kernel was built, and has the vectors of AVX2 or better."""
    if missing_reason is not None:
        return False
    check_isa()
    return not is_portable()
