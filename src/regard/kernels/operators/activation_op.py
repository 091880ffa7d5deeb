"""The activations that have an exponential, and their gradients, by the native kernel.

    y = a(x),    dx = dy a'(x)            a: gelu, gelu_tanh, quick_gelu or silu (``csrc/linear/gelu.h``); any shape

Hendrycks and Gimpel 2016, "Gaussian error linear units"; Elfwing et al. 2018 (SiLU). One pass over the numbers in each
direction, computed in float32 and rounded once. Second derivatives are torch's, and so is everything under
``torch.compile`` and ``torch.func``, where torch fuses activations with their neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional

from regard.kernels.autograd_function import Function
from regard.kernels.extension import native
from regard.kernels.operators.projection_op import DTYPES, is_fast
from regard.kernels.tracing import any_requires_grad, is_eager, is_eager_backward

_QUICK = 1.702
"""Factor of the numbers of quick_gelu: its logistic function is near to the normal distribution's."""


def _differentiate_silu(gradient: Tensor, tokens: Tensor) -> Tensor:
    """Compute the gradient of the tokens, which torch's own function is not differentiable in."""
    share = tokens.sigmoid()
    return gradient * share * (1 + tokens * (1 - share))


def _quick_gelu(tokens: Tensor) -> Tensor:
    return tokens * torch.sigmoid(_QUICK * tokens)


def _differentiate_quick_gelu(gradient: Tensor, tokens: Tensor) -> Tensor:
    """Compute the gradient of the tokens: x s(c x) is silu(c x) / c."""
    return _differentiate_silu(gradient, _QUICK * tokens.clamp(max=1e3))  # 1.702 x may overflow


_OF_TORCH: Mapping[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "gelu": (functional.gelu, torch.ops.aten.gelu_backward.default),
    "gelu_tanh": (
        partial(functional.gelu, approximate="tanh"),
        partial(torch.ops.aten.gelu_backward.default, approximate="tanh"),
    ),
    "quick_gelu": (_quick_gelu, _differentiate_quick_gelu),
    "silu": (functional.silu, _differentiate_silu),
}
"""Torch's function of each, and its gradient, which torch can differentiate again."""


NATIVE_ACTIVATIONS = frozenset({*_OF_TORCH, "identity", "relu", "sigmoid", "relu_squared"})
"""Activations that native kernels apply to what they compute (``csrc/decode/sublayer.h``)."""


def activate(tokens: Tensor, activation: str) -> Tensor:
    """Apply "gelu", "gelu_tanh", "quick_gelu" or "silu". The native kernel computes it on a CPU with AVX2 or better."""
    if not _can_compute(tokens):
        return _OF_TORCH[activation][0](tokens)
    if any_requires_grad(tokens):
        output: Tensor = _Activation.apply(tokens, activation)
        return output
    return _compute(tokens, None, activation)


def _can_compute(tokens: Tensor) -> bool:
    return (
        type(tokens) is Tensor
        and tokens.dtype in DTYPES
        and tokens.is_cpu
        and tokens.layout is torch.strided
        and tokens.numel() > 0
        and is_eager(tokens)
        and forward_ad._current_level < 0
        and is_fast()
    )


def _compute(tokens: Tensor, gradient: Tensor | None, activation: str) -> Tensor:
    """Compute the activation, or with a gradient of the output the gradient of the tokens."""
    tokens = tokens.contiguous()
    output = torch.empty_like(tokens)
    by = None if gradient is None else gradient.contiguous().view(-1)
    threads = torch.get_num_threads()
    native.activation(tokens.view(-1), by, output.view(-1), activation=activation, threads=threads)
    return output


@final
class _Activation(Function):
    """An activation with its gradient."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, activation: str) -> Tensor:
        """Compute the activation of the tokens."""
        ctx.save_for_backward(tokens)
        ctx.activation = activation
        return _compute(tokens, None, activation)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Compute the gradient of the tokens; by torch if it will be differentiated again."""
        (gradient,), (tokens,) = gradients, ctx.saved_tensors
        if is_eager_backward(gradient):
            return _compute(tokens, gradient, ctx.activation), None
        return _OF_TORCH[ctx.activation][1](gradient, tokens), None
