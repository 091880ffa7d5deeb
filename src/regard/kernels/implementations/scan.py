"""The scan family: a state that decays and is updated token by token, by the kernel, and in plain torch.

    S_t = D_t S_(t-1) + k_t u_t^T,    output_t = scale S_t^T q_t        D_t = diag(exp(log_decay_t))
    u_t = v_t, or with the delta rule beta_t (v_t - (D_t S_(t-1))^T k_t)

``reference.scan`` has the sources and the shapes. Every linear-time mechanism with a matrix as its state is a request
of this operation: linear attention, retention, Mamba-2, gated linear attention, the (gated) delta rule and KDA.

The kernels, regard::scan and regard::scan_backward, compute chunks of 64 tokens; the backward pass computes the state
before each chunk again, so memory is linear in length, and no state is kept between the passes. Gradients of log_decay,
beta and the initial state have their dtypes. There is no second derivative.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.errors import OptionError, RefusedError
from regard.kernels.autocast import disable_autocast
from regard.kernels.extension import native
from regard.kernels.implementation import Implementation
from regard.kernels.operators.operator import Operator, refuse_second_derivative
from regard.kernels.reference.scan import ScanRequest, ScanResult, scan_chunks
from regard.kernels.results import accumulation_dtype, empty_token_major
from regard.kernels.support import unsupported_reason
from regard.kernels.tracing import is_eager, is_exported_to_onnx

MAX_SCAN_DIM = 1024
"""Largest head_dim and value_dim that the kernel supports."""


def _refuses(request: ScanRequest) -> str | None:
    """Refuse other devices, dtypes and transforms, and heads wider than the kernel supports.

    Raises OptionError if REGARD_ISA names an instruction set that does not run here.
    """
    reason = unsupported_reason(*(tensor for tensor in request.tensors if tensor is not None))
    if reason is None and max(request.query.shape[3], request.value.shape[3]) > MAX_SCAN_DIM:
        return f"native takes a head_dim and value_dim of at most {MAX_SCAN_DIM}"
    return reason


def _native(request: ScanRequest) -> ScanResult:
    """Compute it with the kernel, through the torch operator if torch is tracing, else directly.

    Raises ShapeError or DtypeError if the tensors do not fit, OptionError if a log_decay is above 0.
    """
    request.check()
    request = request.with_resets
    return ScanResult(*SCAN.call(request.tensors, *request[:7]))


def _reference(request: ScanRequest) -> ScanResult:
    """Compute it in plain torch, half precision in float32.

    Raises what ``_native`` raises; for a log_decay above 0 on a CPU only: other devices would have to wait for it.
    """
    request.check()
    if request.beta is not None and is_exported_to_onnx():
        raise RefusedError(
            "the delta rule has no ONNX graph",
            expected="a scan without beta",
            got=request.describe(),
            do="export a model with another mechanism: ONNX has no operation that solves a triangular system",
        )
    decay = request.log_decay
    if decay is not None and decay.is_cpu and is_eager(decay) and bool((decay > 0).any()):
        raise _positive_decay_error()
    with disable_autocast(request.query.device):
        output, state = scan_chunks(request.to(accumulation_dtype(request.query.dtype)))
    return ScanResult(output.to(request.query.dtype), state)


def _positive_decay_error() -> OptionError:
    """Make the error for a log_decay above 0."""
    return OptionError(
        "a log_decay is above 0",
        expected="logarithms of decays from 0 to 1, so numbers of at most 0",
        got="a decay above 1, with which the state grows without bound",
        do="compute it as -softplus(...), or as the logarithm of a sigmoid",
    )


def _scan(*inputs: Any) -> tuple[Tensor, Tensor]:
    """Compute regard::scan on a CPU."""
    request = ScanRequest(*inputs)
    output, final_state = _empty_results(*inputs)
    if output.shape[3] == 0 or final_state.shape[2] == 0:
        return output.zero_(), final_state
    query, key, value, log_decay, beta, state, scale, _ = request
    if not native.scan(
        query, key, value, log_decay, beta, state, output, final_state, scale=scale, threads=torch.get_num_threads()
    ):
        raise _positive_decay_error()
    return output, final_state


def _empty_results(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    """Allocate the output and the final state; also the fake kernel for tracing."""
    del key, others
    batch, heads, length, head_dim = query.shape
    output = empty_token_major(query, length, value.shape[3])
    dtype = accumulation_dtype(query.dtype)
    return output, query.new_empty(batch, heads, head_dim, value.shape[3], dtype=dtype)


def _scan_backward(grad_output: Tensor, grad_state: Tensor | None, *inputs: Any) -> tuple[Tensor, ...]:
    """Compute regard::scan_backward on a CPU."""
    request = ScanRequest(*inputs)
    gradients = _empty_gradients(grad_output, grad_state, *inputs)
    if request.query.shape[3] == 0 or request.value.shape[3] == 0:
        for gradient in gradients:
            gradient.zero_()
        return gradients
    results = (None if of is None else gradient for gradient, of in zip(gradients, request.tensors, strict=True))
    options: dict[str, Any] = {"scale": request.scale, "threads": torch.get_num_threads()}
    native.scan_backward(grad_output, grad_state, *request.tensors, *results, **options)
    return gradients


def _empty_gradients(grad_output: Tensor, grad_state: Tensor | None, *inputs: Any) -> tuple[Tensor, ...]:
    """Allocate the gradients, empty ones for inputs that are absent; also the fake kernel for tracing."""
    del grad_output, grad_state
    query, key, value, *optional, _ = inputs
    of_tokens = (empty_token_major(part, part.shape[2], part.shape[3]) for part in (query, key, value))
    others = (query.new_empty(0) if part is None else part.new_empty(part.shape) for part in optional)
    return (*of_tokens, *others)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
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
    tensors = (grad_output, grad_state, *inputs)
    results = SCAN_BACKWARD.call_backward(tensors, *tensors, ctx.scale)
    given = (None if part is None else gradient for gradient, part in zip(results, inputs, strict=True))
    return (*given, None)


_SCHEMA = "Tensor query, Tensor key, Tensor value, Tensor? log_decay, Tensor? beta, Tensor? state, float scale"
SCAN_BACKWARD = Operator(
    "scan_backward",
    f"(Tensor grad_output, Tensor? grad_final_state, {_SCHEMA}) -> (Tensor grad_query, Tensor grad_key, "
    "Tensor grad_value, Tensor grad_log_decay, Tensor grad_beta, Tensor grad_state)",
    compute=_scan_backward,
    fake=_empty_gradients,
    differentiate=refuse_second_derivative,
    vmap=True,
)
SCAN = Operator(
    "scan",
    f"({_SCHEMA}) -> (Tensor output, Tensor final_state)",
    compute=_scan,
    fake=_empty_results,
    save=_save,
    differentiate=_differentiate,
)
NATIVE = Implementation("native", _native, _refuses, why_chosen="regard's own kernels, made for this CPU")
REFERENCE = Implementation("reference", _reference, why_chosen="plain torch, on any device, any number of derivatives")
