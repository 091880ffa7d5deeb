"""impl "sdpa": torch's fused ``scaled_dot_product_attention``, with regard's semantics of masks and empty rows.

The kernel multiplies forbidden keys by a weight of 0, and 0 * NaN is NaN. So this file adds, around the call:

    a query that may attend to no key has an output of exactly 0;
    on a CPU, unsafe tokens are replaced by zeros, and the rows that they affect are computed in plain torch
    (``implementations.nonfinite_guard``): forbidden tokens have no influence, whatever their values;
    on a GPU, where reading values would stall the device, only keys hidden from every query (padding) are replaced by
    zeros, or not read at all; masks are told in the form that costs least (``sdpa_form``);
    with a bias, half precision is computed in float32: in the dtype of the query, a bias of hundreds is off by 1;
    the largest bias of each row is subtracted from the row, which changes no weight: the kernel's backward pass takes
    weights from a rounded log-sum-exp; if all biases of a row are -1e9, its weights would add up to the number of keys.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.nn.functional import scaled_dot_product_attention

from regard.kernels.autocast import disable_autocast
from regard.kernels.describe_bytes import describe_bytes
from regard.kernels.implementation import Backend, Implementation
from regard.kernels.implementations.nonfinite_guard import is_safe, run_guarded
from regard.kernels.implementations.sdpa_form import Form, dense_bytes, find_form, key_range
from regard.kernels.implementations.second_derivative_guard import guard_second_derivative
from regard.kernels.implementations.varlen import call_varlen, run_varlen
from regard.kernels.request import Bias, Request, make_term_check
from regard.kernels.same_layout import copy_if_overlapping
from regard.kernels.tracing import any_requires_grad, in_functorch, in_single_grad_transform
from regard.masks.base import Mask
from regard.positions.base import DistanceBias, PairBias

COMPUTED_TERMS = ("mask", "bias", "scale", "dropout")
"""The terms that torch's kernel computes."""
find_other_term = make_term_check(COMPUTED_TERMS)
MAX_QUIET_BYTES = 1 << 30
"""Memory of a dense mask above which a warning says its size."""
_GRAPH_BREAK_MESSAGE = {
    "msg": 'impl "sdpa" reads tensor values on a CPU, which breaks the graph; if the graph must be whole '
    '(fullgraph=True, torch.export), use impl="native" or impl="reference"'
}
_GRAPH_BREAK_OPTIONS = {} if torch.__version__ < "2.9" else _GRAPH_BREAK_MESSAGE  # older versions accept no message


def _details() -> str:
    """Describe torch's version, and the instruction set that torch uses."""
    return f"torch {torch.__version__}, on CPUs for {torch.backends.cpu.get_cpu_capability()}"


def _refuses(request: Request) -> str | None:
    """Refuse biases that need the queries or the weights; other terms; torch.func, except for one first derivative
    without a trained bias; and fake tensors on a CPU, which have no values.
    """
    if isinstance(request.bias, PairBias) and not isinstance(request.bias, DistanceBias):
        return f"sdpa takes a bias as a tensor, and {type(request.bias).__name__} needs the queries or the weights"
    other = find_other_term(request.terms)
    if other is not None:
        return f"torch's fused kernel has no {other}"
    if in_functorch() and not (in_single_grad_transform() and not _requires_grad(request.bias)):
        return "torch's fused kernel has no rules for vmap, forward-mode and second derivatives"
    if request.device_type == "cpu" and isinstance(request.query, FakeTensor):
        return "sdpa reads tensor values on a CPU, and a fake tensor has none"
    return None


def _attention(request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute attention with torch's kernel, and in plain torch for the rows that unsafe tokens affect."""
    dtype, request = request.query.dtype, request.with_rebalanced_scale
    if request.device.type == "cpu":
        if torch.compiler.is_compiling():
            torch._dynamo.graph_break(**_GRAPH_BREAK_OPTIONS)
        request = _copy_overlapping_tensors(request)
        output = _run_fused(request) if is_safe(request) else run_guarded(request, _run_fused)
    else:
        output = run_form(request, find_form(request))
    return output.to(dtype)


def run_form(
    request: Request, form: Form, varlen_kernel: Callable[..., Any] = call_varlen
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute a request with torch's kernel in one of its forms for a GPU (``find_form``)."""
    if request.query.numel() == 0 or request.frame.keys == 0:
        return _run_empty(request)
    request = _make_scale_positive(request)
    if form is Form.UNMASKED:
        return _call(request, None)
    if form is Form.ONE_QUERY:
        start, stop = key_range(request)
        return _call(request.replace(key=request.key[:, :, start:stop], value=request.value[:, :, start:stop]), None)
    if form is Form.CAUSAL:  # keys behind the last query are hidden, and the kernel is fastest for a square
        queries = request.frame.queries
        seen = request.replace(key=request.key[:, :, :queries], value=request.value[:, :, :queries])
        return _call(seen, None, causal=True)
    if form is Form.CAUSAL_END:
        from torch.nn.attention.bias import causal_lower_right  # late, since it imports torch's compiler

        return _call(request, causal_lower_right(request.frame.queries, request.frame.keys))
    if form is Form.VARLEN:
        with disable_autocast(request.device):
            return run_varlen(request, varlen_kernel)
    if form is Form.DENSE and not torch.compiler.is_compiling():
        _warn_of_memory(request)
    return _run_fused(request if request.mask is None else _zero_hidden_keys(request))


def _make_scale_positive(request: Request) -> Request:
    """Move the sign of the scale to the query: kernels take the largest product of a row before they scale it."""
    scale = request.terms.scale
    if scale > 0:
        return request
    return request.replace(query=request.query * (-1.0 if scale < 0 else 0.0), scale=-scale or 1.0)


def _warn_of_memory(request: Request) -> None:
    """Say how large the dense mask is, once for each size, if it is large."""
    size = dense_bytes(request)
    if size > MAX_QUIET_BYTES:
        _warn_once(describe_bytes(size))


@cache
def _warn_once(size: str) -> None:
    warnings.warn(
        f'impl "sdpa" holds a dense mask of {size}: torch\'s kernel has no other form for these terms. '
        "regard.why(...) says why FlexAttention, which needs none, is not taken",
        RuntimeWarning,
        stacklevel=2,
    )


def _auto_defers(request: Request) -> str | None:
    if request.device_type == "cpu":
        return None
    form = find_form(request)
    return f"it would need a dense mask of {describe_bytes(dense_bytes(request))}" if form is Form.DENSE else None


def _why_chosen(request: Request) -> str:
    text = "torch's fused kernel, with regard's meaning of masks and empty rows"
    if request.device_type == "cpu":
        return text
    form = find_form(request)
    size = f" of {describe_bytes(dense_bytes(request))}" if form is Form.DENSE else ""
    if request.query.dtype == torch.float64:
        text = "torch's kernel, which is not fused in float64 on a GPU and holds the weights"
    return f"{text}, {form.value}{size}; the order is assumed, it was not measured on a device"


def _requires_grad(bias: Bias | None) -> bool:
    """Whether the bias, or any parameter of it, requires grad."""
    if isinstance(bias, PairBias):
        return any_requires_grad(*bias.parameters())
    return any_requires_grad(bias)


def _copy_overlapping_tensors(request: Request) -> Request:
    """Copy tensors of a request in which elements share memory, since single elements of them cannot be replaced."""
    bias = copy_if_overlapping(request.bias) if isinstance(request.bias, Tensor) else request.bias
    query, key, value = (
        copy_if_overlapping(request.query),
        copy_if_overlapping(request.key),
        copy_if_overlapping(request.value),
    )
    return request.replace(query=query, key=key, value=value).replace(bias=bias)


def _run_fused(request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute a request without unsafe tokens with torch's kernel."""
    mask = request.mask
    if request.query.numel() == 0 or request.frame.keys == 0:
        return _run_empty(request)
    if mask is None and request.bias is None:
        return _call(request, None)
    if request.bias is not None:
        return _run_with_bias(_widen_request(request)).to(request.query.dtype)
    assert mask is not None
    # The kernel fills in -inf for the causal mask before it scales, which a scale <= 0 turns into NaN or +Inf.
    if request.terms.scale > 0 and request.frame.offset >= 0 and mask.band(request.frame) == (None, 0):
        return _call(request, None, causal=True)
    return _run_masking_empty_rows(
        request, mask.dense(request.frame.queries, request.frame.keys, device=request.device)
    )


def _run_empty(request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute a request without queries, heads or keys: outputs are 0, and so are all gradients, also of the bias."""
    if request.query.shape[1] == 0:  # the kernel refuses 0 heads with more key heads
        output = request.query @ request.key[:, :0].mT @ request.value[:, :0]
    else:
        everywhere = torch.ones((), dtype=torch.bool, device=request.device)  # every row is empty
        output = _call(request, None).masked_fill(everywhere, 0.0)
    if request.bias is None:
        return output
    return output + _bias_scores(request)[..., :0].sum().to(output.dtype)


def _bias_scores(request: Request) -> Float[Tensor, "#batch #heads #queries #keys"]:
    """Compute the bias of each query and key, in the query's dtype."""
    if isinstance(request.bias, PairBias):
        rows = request.frame.all_rows(request.device)
        return request.bias.scores(request.query, request.frame, rows, request.terms.scale)
    assert request.bias is not None
    return request.bias.to(request.query.dtype)


def _run_with_bias(request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute a request with a bias; the mask is added to the bias as -inf."""
    bias = _bias_scores(request)
    if request.mask is not None:
        allowed = request.mask.dense(request.frame.queries, request.frame.keys, device=request.device)
        bias = bias.masked_fill(~allowed, -torch.inf)
    return _run_masking_empty_rows(request, bias)


def _widen_request(request: Request) -> Request:
    """Convert half precision to float32; other dtypes stay."""
    wide = torch.promote_types(request.query.dtype, torch.float32)
    return request.replace(query=request.query.to(wide), key=request.key.to(wide), value=request.value.to(wide))


def _run_masking_empty_rows(request: Request, mask: Tensor) -> Float[Tensor, "batch heads queries value_dim"]:
    """Call the kernel with a bool or additive mask. Rows without an allowed key are computed unmasked from a query of
    zeros and then set to 0, so that their gradients are 0 and not NaN. A bias of -inf forbids a key as well.
    """
    if mask.dtype == torch.bool:
        empty = ~mask.any(-1, keepdim=True)
    else:
        largest = mask.detach().amax(-1, keepdim=True)
        empty = largest == -torch.inf
        mask = mask - largest.masked_fill(empty, 0.0)
    if request.device.type == "cpu" and not bool(empty.any()):
        return _call(request, mask)
    whole = mask | empty if mask.dtype == torch.bool else mask.masked_fill(empty, 0.0)
    request = request.replace(query=request.query.masked_fill(empty, 0.0))
    return _call(request, whole).masked_fill(empty, 0.0)


def _zero_hidden_keys(request: Request) -> Request:
    """Replace keys and values that are hidden from every query by zeros."""
    assert request.mask is not None
    unseen = ~_find_visible_keys(request, request.mask)[..., None]
    return request.replace(key=request.key.masked_fill(unseen, 0.0), value=request.value.masked_fill(unseen, 0.0))


def _call(request: Request, mask: Tensor | None, *, causal: bool = False) -> Tensor:
    with disable_autocast(request.device):  # the output has the query's dtype
        return scaled_dot_product_attention(
            guard_second_derivative("sdpa", request.query),
            guard_second_derivative("sdpa", request.key),
            guard_second_derivative("sdpa", request.value),
            attn_mask=mask,
            dropout_p=request.terms.dropout,
            is_causal=causal,
            scale=request.terms.scale,
            enable_gqa=request.group > 1,
        )


def _find_visible_keys(request: Request, mask: Mask) -> Bool[Tensor, "#batch #key_heads keys"]:
    """Find the keys that any query may attend to, for each key head."""
    queries, keys = request.frame.queries, request.frame.keys
    band = mask.band(request.frame)
    if band is not None:  # query i sees i + low to i + high, so no queries x keys mask is needed
        low, high = band
        key = torch.arange(keys, device=request.device)
        after = torch.ones_like(key, dtype=torch.bool) if low is None else key >= low
        return (after if high is None else after & (key <= queries - 1 + high))[None, None]
    visible = mask.dense(queries, keys, device=request.device).any(-2).expand(-1, -1, keys)
    if visible.shape[1] > 1 and request.group > 1:
        visible = visible.unflatten(1, (-1, request.group)).any(2)
    return visible


BACKEND = Backend("sdpa", unavailable_reason=lambda: None, details=_details)  # every torch has the kernel
ATTENTION = Implementation("sdpa", _attention, _refuses, why_chosen=_why_chosen, auto_defers=_auto_defers)
