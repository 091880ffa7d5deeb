"""A linear layer with weights of few bits by the native kernels, in products of integers.

    y_ro = sum_g t_rg (s_og sum_{k in g} q_rk w_ok + m_og sum_{k in g} q_rk) + b_o     x (.., inputs) -> y (.., outputs)
    t_rg = max_{k in g} |x_rk| / 127,   q_rk = round(x_rk / t_rg)

Groups g are of 64 inputs. int8 has a scale s for each group of a row of weights, int4 also a minimum m.

Tokens are rounded to bytes too, each group of inputs by its largest number: a processor multiplies four pairs of bytes
in the time of one pair of float32. Dettmers et al. 2022, "LLM.int8()", section 2; Yao et al. 2022, "ZeroQuant", section
4. Sums of a group are exact. The bits of an output depend on its token alone: not on the other tokens of the call, nor
on the number of threads. A token with NaN or infinity has NaN in all outputs. There is no derivative.
"""

from __future__ import annotations

from functools import cache

import torch
from jaxtyping import BFloat16, Float, Int8, UInt8
from torch import Tensor

from regard.kernels.extension import native
from regard.kernels.operators.projection_op import DTYPES, MAX_TOKENS, are_dense, is_fast
from regard.kernels.tracing import any_requires_grad, is_plain_call

GROUP = 64
"""Inputs of a group."""
PANEL = 16
"""Outputs of a panel."""
UNIT = 4
"""Inputs that are next to each other in a panel."""


def can_multiply_integers(tokens: Tensor, inputs: int, weight: Tensor, scale: Tensor, bias: Tensor | None) -> bool:
    """Whether the kernels compute this call: tokens on a CPU, no gradients, dense weights of so many inputs."""
    return (
        tokens.dtype in DTYPES
        and tokens.numel() > 0
        and tokens.shape[-1] == inputs
        and weight.shape[0] > 0
        and scale.is_contiguous()
        and not any_requires_grad(tokens, bias)
        and are_dense(tokens, weight, bias)
        and is_plain_call(tokens, weight, scale, bias)
        and (is_fast() or _uses_dot_products())
    )


@cache
def _uses_dot_products() -> bool:
    """Whether an Arm processor multiplies bytes, which is faster than torch's products also where others are not."""
    return native is not None and native.uses_dot_products()


def multiply_integers(
    tokens: Float[Tensor, "*rows inputs"],
    weight: Int8[Tensor, "panels groups bytes"] | UInt8[Tensor, "panels pairs bytes"],
    scale: BFloat16[Tensor, "panels groups numbers"],
    bias: Float[Tensor, " outputs"] | None,
    outputs: int,
    activation: str = "identity",
) -> Float[Tensor, "*rows outputs"]:
    """Compute a call for which ``can_multiply_integers`` holds.

    Weights are in panels of 16 outputs, the last of which is filled up with zeros. The bytes of a panel and a group,
    (16 units, 16 outputs, 4 inputs), are int8, or two numbers of int4: that of the first group of a pair in the lower
    four bits, that of the second one in the upper. ``scale`` holds the scales of the outputs of a panel, and with int4
    then their minima. The activation applies to more than ``MAX_TOKENS`` tokens only.
    """
    rows = tokens.reshape(-1, tokens.shape[-1]).contiguous()
    output, threads = rows.new_empty(rows.shape[0], outputs), torch.get_num_threads()
    if is_few(tokens):
        native.project(rows, weight, scale, bias, output, threads=threads)
    else:
        native.linear(rows, weight, scale, bias, output, activation=activation, threads=threads)
    return output if tokens.dim() == 2 else output.view(*tokens.shape[:-1], outputs)


def is_few(tokens: Tensor) -> bool:
    """Whether the kernel for few tokens computes, which applies no activation."""
    return tokens.numel() <= MAX_TOKENS * tokens.shape[-1]
