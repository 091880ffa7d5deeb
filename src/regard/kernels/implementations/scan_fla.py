"""impl "fla": the scan family by the Triton kernels of flash-linear-attention, on a GPU.

    no decay, or one a head and token        chunk_simple_gla            linear, retention, Mamba-2
    one a channel of the key                 chunk_gla                   gated linear attention
    the delta rule, with one a head          chunk_gated_delta_rule      (gated) delta rule
    the delta rule, with one a channel       chunk_kda                   Kimi delta attention

Yang and Zhang 2024, "FLA: a Triton-based library for hardware-efficient implementations of linear attention mechanism",
https://github.com/fla-org/flash-linear-attention; tried with fla-core 0.6.0. Their tokens are (batch, length, heads,
size), their gates natural logarithms, and their states (batch, heads, head_dim, value_dim) in float32, as here. The
scale is always passed, since theirs depends on the kernel. Several texts in a row are sequences of their own
(``cu_seqlens``), of a batch of 1: each begins with an initial state, of which those behind the first of a row are 0, so
resets are exact, where a decay of 0 would leave few digits of the decays that are summed with it. Hidden tokens arrive
as zeros that neither update the state nor let it decay, so padding is exact.

What differs from the other implementations:

    half precision    products are of tokens rounded to it; others are given tokens in float32
    float32           products are in TF32 on NVIDIA GPUs, with 10 bits, unless TRITON_F32_DEFAULT=ieee is set
    decays            below exp(-110), which is 0 in float32, are computed as that
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from regard.kernels.autocast import disable_autocast
from regard.kernels.hardware import Hardware, describe_hardware
from regard.kernels.implementation import Implementation
from regard.kernels.implementations.second_derivative_guard import refuse_create_graph
from regard.kernels.optional_package import find_problem
from regard.kernels.packed_texts import PackedTexts, find_texts
from regard.kernels.reference.scan import ScanRequest, ScanResult
from regard.kernels.tracing import in_functorch

_MIN_LOG_DECAY = -110.0
_MAX_DIM = 256
"""Widest key of the delta rules in fla."""
_HALF = (torch.float16, torch.bfloat16)
_MIN_VERSION = (0, 6)
_MODULES = tuple(f"fla.ops.{name}" for name in ("simple_gla", "gla", "gated_delta_rule", "kda"))

FindKernel = Callable[[str, str], Callable[..., Any]]
"""(module, function) -> the function of fla."""


def device_refusal(target: Hardware) -> str | None:
    """Return why fla computes nothing on a device; None if it computes there."""
    if target.type not in ("cuda", "xpu"):
        return f"fla runs on a CUDA or XPU device, and the tensors are on {target}"
    if not target.has_triton:
        return "fla is compiled by Triton, which is not installed"
    return None


def package_problem() -> str | None:
    """Return why flash-linear-attention cannot be used on this machine; None if it can."""
    if find_spec("fla") is None:
        return 'flash-linear-attention is not installed; install it with `pip install "regard[gpu]"`'
    return find_problem("fla", _MODULES, _MIN_VERSION)


def refusal(request: ScanRequest, target: Hardware) -> str | None:
    """Return why fla does not compute a request on a device; None if it does."""
    reason = device_refusal(target)
    if reason is not None:
        return reason
    if request.query.dtype == torch.float64:
        return "fla has no float64"
    if in_functorch():
        return "fla has no rules for torch.func or forward-mode derivatives"
    if torch.compiler.is_compiling():
        return "the functions of fla break the graph of torch.compile"
    if 0 in (*request.query.shape, request.value.shape[3]):
        return "fla takes at least one token"
    if request.beta is not None and request.query.shape[3] > _MAX_DIM:
        return f"fla takes a head_dim of at most {_MAX_DIM} with a delta rule"
    return None


def float32_reason(request: ScanRequest) -> str | None:
    """Return why "auto" does not take fla for a request that it could compute: its float32 has 10 bits."""
    if request.query.dtype in _HALF:
        return None
    return "in float32 its products are in TF32; it is used by name"


def run_fla(request: ScanRequest, find_kernel: FindKernel | None = None) -> ScanResult:
    """Compute a scan with a function of fla, which ``find_kernel`` returns.

    Raises ShapeError or DtypeError if the tensors do not fit, RefusedError for a backward pass with create_graph=True.
    """
    request.check()
    find_kernel = _find_kernel if find_kernel is None else find_kernel
    texts = None if request.starts is None else find_texts(request.starts)
    query, key, value = (_token_major(side, texts) for side in request[:3])
    options: dict[str, Any] = {"scale": request.scale, "output_final_state": True}
    state = None if request.state is None else refuse_create_graph("fla", request.state.float()).contiguous()
    if texts is not None:
        options["cu_seqlens"] = texts.ends
        state = None if state is None else texts.initial_states(state)
    if state is not None:
        options["initial_state"] = state
    decay = (
        None if request.log_decay is None else _token_major(request.log_decay.float().clamp(min=_MIN_LOG_DECAY), texts)
    )
    by_channel = decay is not None and decay.shape[3] > 1
    with disable_autocast(request.query.device):
        if request.beta is not None:
            options["beta"] = _token_major(request.beta.to(query.dtype), texts)[..., 0]
            if by_channel:
                output, state = find_kernel("kda", "chunk_kda")(query, key, value, g=decay, **options)
            else:
                compute = find_kernel("gated_delta_rule", "chunk_gated_delta_rule")
                gate = query.new_zeros(query.shape[:3], dtype=torch.float32) if decay is None else decay[..., 0]
                output, state = compute(query, key, value, g=gate, **options)
        elif by_channel:
            output, state = find_kernel("gla", "chunk_gla")(query, key, value, g=decay, **options)
        else:
            gates = None if decay is None else decay[..., 0]
            output, state = find_kernel("simple_gla", "chunk_simple_gla")(query, key, value, g=gates, **options)
    if texts is not None:
        output, state = output[0].unflatten(0, request.query.shape[0::2][:2]), state[texts.last]
    return ScanResult(output.transpose(1, 2).to(request.query.dtype), state.float())


def _token_major(side: Tensor, texts: PackedTexts | None) -> Tensor:
    """Convert (batch, heads, length, size) to (batch, length, heads, size), with texts to (1, tokens, heads, size)."""
    tokens = refuse_create_graph("fla", side).transpose(1, 2).contiguous()
    return tokens if texts is None else tokens.flatten(0, 1)[None]


def _find_kernel(module: str, function: str) -> Callable[..., Any]:
    """Import a function of fla when it is used: its modules look for a device."""
    found: Callable[..., Any] = getattr(importlib.import_module(f"fla.ops.{module}"), function)
    return found


def _refuses(request: ScanRequest) -> str | None:
    return refusal(request, describe_hardware(request.query.device)) or package_problem()


FLA = Implementation(
    "fla",
    run_fla,
    _refuses,
    auto_skips=float32_reason,
    why_chosen="the kernels of flash-linear-attention; the order is assumed, it was not measured on a device",
    takes_rounded_tokens=True,
)
