"""regard::scan and regard::scan_backward: a state that decays and is updated token by token, as torch operators.

``reference.scan`` has the equations, the sources and the shapes. The kernels compute chunks of 64 tokens; the backward
pass computes the state before each chunk again, so memory is linear in length, and no state is kept between the passes.
log_decay, beta and the initial state may be in the dtype of the tokens or in the dtype of sums, and so are their
gradients. There is no second derivative.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import OptionError
from regard.kernels.extension import native
from regard.kernels.operators.operator import Operator, refuse_second_derivative
from regard.kernels.results import accumulation_dtype, empty_token_major
from regard.kernels.tracing import any_requires_grad, is_eager, is_eager_backward

MAX_SCAN_DIM = 1024
"""Largest head_dim and value_dim that the kernel supports."""

Inputs: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, float]
"""query, key, value, log_decay, beta, initial state, scale."""


def scan(
    query: Float[Tensor, "batch heads length head_dim"],
    key: Float[Tensor, "batch heads length head_dim"],
    value: Float[Tensor, "batch heads length value_dim"],
    log_decay: Float[Tensor, "batch heads length one_or_head_dim"] | None,
    beta: Float[Tensor, "batch heads length 1"] | None,
    state: Float[Tensor, "batch heads head_dim value_dim"] | None,
    scale: float,
) -> tuple[Float[Tensor, "batch heads length value_dim"], Float[Tensor, "batch heads head_dim value_dim"]]:
    """Compute the output and the final state, through the torch operator if torch is tracing, else by the kernel.

    Raises OptionError if a log_decay is above 0.
    """
    tensors = (query, key, value, log_decay, beta, state)
    compute = SCAN.torch_op
    if is_eager(*tensors):
        compute = SCAN.compute_with_grad if any_requires_grad(*tensors) else SCAN.compute
    return compute(*tensors, scale)


def positive_decay_error() -> OptionError:
    """Make the error for a log_decay above 0."""
    return OptionError(
        "a log_decay is above 0",
        expected="logarithms of decays from 0 to 1, so numbers of at most 0",
        got="a decay above 1, with which the state grows without bound",
        do="compute it as -softplus(...), or as the logarithm of a sigmoid",
    )


def _scan(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    state: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Compute regard::scan on a CPU."""
    output, final_state = _empty_results(query, value)
    if query.shape[3] == 0 or value.shape[3] == 0:
        return output.zero_(), final_state
    if not native.scan(
        query, key, value, log_decay, beta, state, output, final_state, scale=scale, threads=torch.get_num_threads()
    ):
        raise positive_decay_error()
    return output, final_state


def _empty_results(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Allocate the output and the final state."""
    batch, heads, length, head_dim = query.shape
    output = empty_token_major(query, length, value.shape[3])
    dtype = accumulation_dtype(query.dtype)
    return output, query.new_empty(batch, heads, head_dim, value.shape[3], dtype=dtype)


def _scan_backward(
    grad_output: Tensor,
    grad_state: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    state: Tensor | None,
    scale: float,
) -> tuple[Tensor, ...]:
    """Compute regard::scan_backward on a CPU."""
    gradients = _empty_gradients(query, key, value, log_decay, beta, state)
    if query.shape[3] == 0 or value.shape[3] == 0:
        for gradient in gradients:
            gradient.zero_()
        return gradients
    optional = zip(gradients[3:], (log_decay, beta, state), strict=True)
    native.scan_backward(
        grad_output,
        grad_state,
        query,
        key,
        value,
        log_decay,
        beta,
        state,
        *gradients[:3],
        *(gradient if of is not None else None for gradient, of in optional),
        scale=scale,
        threads=torch.get_num_threads(),
    )
    return gradients


def _empty_gradients(query: Tensor, key: Tensor, value: Tensor, *optional: Tensor | None) -> tuple[Tensor, ...]:
    """Allocate the gradients; empty tensors for inputs that are absent."""
    of_tokens = (empty_token_major(part, part.shape[2], part.shape[3]) for part in (query, key, value))
    others = (query.new_empty(0) if part is None else part.new_empty(part.shape) for part in optional)
    return (*of_tokens, *others)


def _save(ctx: Any, inputs: Inputs, output: tuple[Tensor, Tensor]) -> None:
    """Save the inputs; nothing else is needed."""
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:-1])
    ctx.scale = inputs[-1]
    ctx.output_shape = output[0].shape


def _differentiate(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    """Compute the gradient of each input of ``regard::scan``; None for inputs without one."""
    grad_output, grad_state = gradients
    if grad_output is None and grad_state is None:
        return (None,) * 7
    inputs = ctx.saved_tensors
    if grad_output is None:
        grad_output = inputs[0].new_zeros(1).expand(ctx.output_shape)
    eager = is_eager_backward(grad_output, grad_state, *inputs)
    backward = SCAN_BACKWARD.compute if eager else SCAN_BACKWARD.torch_op
    results = backward(grad_output, grad_state, *inputs, ctx.scale)
    given = (None if part is None else gradient for gradient, part in zip(results, inputs, strict=True))
    return (*given, None)


_SCHEMA = "Tensor query, Tensor key, Tensor value, Tensor? log_decay, Tensor? beta, Tensor? state, float scale"
SCAN_BACKWARD = Operator(
    "scan_backward",
    f"(Tensor grad_output, Tensor? grad_final_state, {_SCHEMA}) -> (Tensor grad_query, Tensor grad_key, "
    "Tensor grad_value, Tensor grad_log_decay, Tensor grad_beta, Tensor grad_state)",
    compute=_scan_backward,
    fake=lambda grad_output, grad_state, *inputs: _empty_gradients(*inputs[:-1]),
    differentiate=refuse_second_derivative,
    vmap=True,
)
SCAN = Operator(
    "scan",
    f"({_SCHEMA}) -> (Tensor output, Tensor final_state)",
    compute=_scan,
    fake=lambda query, key, value, *_: _empty_results(query, value),
    save=_save,
    differentiate=_differentiate,
)
