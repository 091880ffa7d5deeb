"""impl "native": regard's own kernels in C++, for CPUs, forward and backward.

One binary contains the kernels for several instruction sets, and picks the best that the processor runs. The
environment variable ``REGARD_ISA`` selects another one: "avx512_amx", "avx512_bf16", "avx512", "avx2" or "portable".
Threads are torch's.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from regard.contract import Observation
from regard.errors import OptionError
from regard.kernels import extension, support, tracing
from regard.kernels.implementation import Backend, Implementation
from regard.kernels.operators import attention_op, observe_op
from regard.kernels.operators.kernel_arguments import COMPUTED_TERMS, to_kernel_arguments
from regard.kernels.request import Request, make_term_check
from regard.kernels.support import MAX_HEAD_DIM
from regard.positions.base import DistanceBias, PairBias

_find_other_term = make_term_check(COMPUTED_TERMS)
_MIN_QUERIES_FOR_SDPA = 16  # queries: with fewer, memory bandwidth is the limit


def _unavailable_reason() -> str | None:
    """Return why the extension cannot be loaded, or why REGARD_ISA cannot be followed; None if both can."""
    if extension.missing_reason is not None:
        return extension.missing_reason
    try:
        support.check_isa()
    except OptionError as error:
        return f"{error.what}: {error.got}, expected {error.expected}"
    return None


def _details() -> str:
    """Describe the instruction set in use, those that run here, and the threads."""
    runtime = extension.native.openmp()
    threads = "threads of its own" if runtime is None else f"threads of torch's {Path(runtime).name}"
    return f"{extension.native.isa()} (here run: {', '.join(extension.native.isas())}); {threads}"


def dot_product_unsupported_reason(request: Request) -> str | None:
    """Refuse other devices, heads wider than 640, biases that need the queries or the weights, and torch.func.

    Raises OptionError if REGARD_ISA names an instruction set that does not run here.
    """
    query, value = request.query, request.value
    other = _find_other_term(request.terms)
    if other is not None:
        return f"the kernels have no {other}"
    if query.is_cpu and (query.size(3) > MAX_HEAD_DIM or value.size(3) > MAX_HEAD_DIM):
        sizes = f"{query.shape[3]} and {value.shape[3]}"
        return f"native takes a head_dim and value_dim of at most {MAX_HEAD_DIM}, and these are {sizes}"
    return request_unsupported_reason(request)


def _attention(request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute attention with the kernel."""
    scaled = request.with_rebalanced_scale
    output = attention_op.attention(scaled.query, scaled.key, scaled.value, to_kernel_arguments(scaled))
    return output if scaled is request else output.to(request.query.dtype)


def _observe(request: Request, top: int, rows: Tensor | None) -> Observation:
    """Compute attention and statistics with the kernel, which makes a second pass for ``received``."""
    scaled = request.with_rebalanced_scale
    observation = observe_op.observe(scaled.query, scaled.key, scaled.value, top, rows, to_kernel_arguments(scaled))
    return observation if scaled is request else replace(observation, output=observation.output.to(request.query.dtype))


def _auto_skips(request: Request) -> str | None:
    if sdpa_is_faster(request):
        return "without AVX2, torch is faster if no mask lets tiles be skipped"
    return None


def sdpa_is_faster(request: Request) -> bool:
    """Whether torch's fused kernel is faster, for a request that native could compute.

    With AVX2 and AVX-512 it never was. It was faster than the portable kernels in dense attention of many queries,
    except for half precision with gradients, for which torch has no kernel, and a value_dim other than head_dim.
    docs/implementations.md has the numbers.
    """
    query, value = request.query, request.value
    if not support.is_portable() or query.shape[2] < _MIN_QUERIES_FOR_SDPA or query.shape[3] != value.shape[3]:
        return False
    plain = request.mask is None and request.bias is None and request.terms.dropout == 0
    trained = tracing.any_requires_grad(query, request.key, value)
    return plain and not (trained and query.dtype.itemsize == 2)


def request_unsupported_reason(request: Request) -> str | None:
    """Return why no native kernel, whatever its score and sizes, can compute this request; None if one can."""
    if request.hardware is not None and request.hardware.type != "cpu":
        return f"native runs on a CPU, and the tensors are on {request.hardware}"
    reason = support.unsupported_reason(request.query, request.key, request.value)
    if reason is None and isinstance(request.bias, PairBias) and not isinstance(request.bias, DistanceBias):
        return f"native takes a bias for each pair, and {type(request.bias).__name__} needs the queries or the weights"
    return reason


BACKEND = Backend("native", _unavailable_reason, _details)
ATTENTION = Implementation(
    "native",
    _attention,
    dot_product_unsupported_reason,
    _auto_skips,
    why_chosen="regard's own kernels, made for this CPU",
)
OBSERVE = Implementation(
    "native", _observe, dot_product_unsupported_reason, why_chosen="regard's own kernels, made for this CPU"
)
