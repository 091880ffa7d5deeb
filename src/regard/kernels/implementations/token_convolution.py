"""A convolution of tokens with one filter for each head, by the kernel where it takes the call, else in plain torch.

``reference.token_convolution`` has the equation. Derivatives of derivatives are in plain torch.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.kernels.extension import native
from regard.kernels.operators.operator import Operator, refuse_second_derivative
from regard.kernels.reference.token_convolution import convolve_in_torch
from regard.kernels.results import empty_token_major
from regard.kernels.support import unsupported_reason
from regard.kernels.tracing import is_eager

_MAX_CHANNELS, _MAX_SIZE = 1024, 4096


def convolve_tokens(
    base: Float[Tensor, "batch heads queries value_dim"],
    filters: Float[Tensor, "heads size"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    offset: int,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Add the convolution of values to ``base``; all are float32, or float64. The size of a filter is odd."""
    tensors = (base, filters, value)
    fits = value.shape[3] <= _MAX_CHANNELS and filters.shape[1] <= _MAX_SIZE and 0 not in (*base.shape, *value.shape)
    if not fits or unsupported_reason(*tensors) is not None:
        return convolve_in_torch(base, filters, value, offset)
    return CONVOLUTION.call(tensors, *tensors, offset)


def _compute(base: Tensor, filters: Tensor, value: Tensor, offset: int) -> Tensor:
    """Compute regard::convolve_tokens on a CPU."""
    output = _empty_output(base, filters, value, offset)
    native.convolve_tokens(value, filters.contiguous(), base, output, offset, threads=torch.get_num_threads())
    return output


def _empty_output(base: Tensor, filters: Tensor, value: Tensor, offset: int) -> Tensor:
    """Allocate the output; also the fake kernel for tracing."""
    del filters, value, offset
    return empty_token_major(base, base.shape[2], base.shape[3])


def _compute_gradients(gradient: Tensor, filters: Tensor, value: Tensor, offset: int) -> tuple[Tensor, Tensor]:
    """Compute regard::convolve_tokens_backward on a CPU: the gradients of the filters and values."""
    of_filters, of_value = _empty_gradients(gradient, filters, value, offset)
    threads = torch.get_num_threads()
    native.differentiate_filters(gradient, value, of_filters, offset, threads=threads)
    native.convolve_tokens(gradient, filters.flip(1), None, of_value, -offset, threads=threads)
    return of_filters, of_value


def _empty_gradients(gradient: Tensor, filters: Tensor, value: Tensor, offset: int) -> tuple[Tensor, Tensor]:
    """Allocate the gradients; also the fake kernel for tracing."""
    del gradient, offset
    of_filters = filters.new_empty(filters.shape)
    return of_filters, empty_token_major(value, value.shape[2], value.shape[3])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Save the filters and values."""
    del output
    ctx.save_for_backward(*inputs[1:3])
    ctx.offset = inputs[3]


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """Compute the gradients of base, filters and values."""
    filters, value = ctx.saved_tensors
    tensors = (gradient, filters, value)
    if torch.is_grad_enabled() and is_eager(*tensors):  # to be differentiated again
        return (gradient, *_differentiate_in_torch(*tensors, ctx.offset), None)
    return (gradient, *CONVOLUTION_BACKWARD.call_backward(tensors, *tensors, ctx.offset), None)


def _differentiate_in_torch(
    gradient: Tensor, filters: Tensor, value: Tensor, offset: int
) -> tuple[Tensor | None, Tensor | None]:
    """Compute the gradients of filters and values such that they have gradients."""
    differentiated = [tensor for tensor in (filters, value) if tensor.requires_grad]
    if not differentiated:
        return None, None
    output = convolve_in_torch(torch.zeros_like(gradient), filters, value, offset)
    gradients = iter(torch.autograd.grad(output, differentiated, gradient, create_graph=True))
    of_filters = next(gradients) if filters.requires_grad else None
    return of_filters, next(gradients) if value.requires_grad else None


CONVOLUTION_BACKWARD = Operator(
    "convolve_tokens_backward",
    "(Tensor gradient, Tensor filters, Tensor value, int offset) -> (Tensor grad_filters, Tensor grad_value)",
    compute=_compute_gradients,
    fake=_empty_gradients,
    differentiate=refuse_second_derivative,
    vmap=True,
)
CONVOLUTION = Operator(
    "convolve_tokens",
    "(Tensor base, Tensor filters, Tensor value, int offset) -> Tensor",
    compute=_compute,
    fake=_empty_output,
    save=_save,
    differentiate=_differentiate,
)
