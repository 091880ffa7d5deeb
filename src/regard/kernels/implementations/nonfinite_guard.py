"""Guard fused kernels against *unsafe* tokens: those with NaN, Inf or huge elements.

A fused kernel multiplies forbidden keys by a weight of 0, and 0 * NaN is NaN; its backward pass recomputes weights as
exp(score - lse), where a score beyond 1/epsilon has an error that can overflow. So a token is *unsafe* if it contains

    NaN or Inf,
    in query or key, a number so large that d |q| |k| |scale| could reach 1/epsilon of float32 (or float64),
    in value, a number whose product with a gradient could overflow.

``run_guarded`` replaces unsafe tokens by zeros for the kernel, and computes the rows of queries that are unsafe or may
attend to an unsafe key in plain torch (``reference.attention``). So forbidden tokens influence no other row, whatever
their values: the zeros have the memory layout of the tokens (``implementations.same_layout``), so the kernel takes the
same path as without unsafe tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.kernels.reference import attention as reference_attention
from regard.kernels.request import Request
from regard.kernels.same_layout import replace_where, zero_where

Kernel = Callable[[Request], Tensor]


def is_safe(request: Request) -> bool:
    """Whether no token is unsafe, and a bias tensor contains no NaN or +Inf. Reads all elements once."""
    for_scores, for_values = _safe_bounds(request)
    bounded = all(
        _is_within(tensor, bound)
        for tensor, bound in ((request.query, for_scores), (request.key, for_scores), (request.value, for_values))
    )
    if not bounded or not isinstance(request.bias, Tensor) or request.bias.numel() == 0:
        return bounded
    return float(request.bias.detach().amax()) < torch.inf


def run_guarded(request: Request, kernel: Kernel) -> Float[Tensor, "batch heads queries value_dim"]:
    """Run ``kernel`` with zeros in place of unsafe tokens, and plain torch for the rows that unsafe tokens affect."""
    for_scores, for_values = _safe_bounds(request)
    unsafe_query = _find_unsafe_tokens(request.query, for_scores)
    unsafe_key = _find_unsafe_tokens(request.key, for_scores)
    unsafe_value = _find_unsafe_tokens(request.value, for_values)
    queries, keys = request.frame.queries, request.frame.keys
    allowed = torch.ones(1, 1, 1, keys, dtype=torch.bool, device=request.device)
    if request.mask is not None:
        allowed = request.mask.dense(queries, keys, device=request.device)
    of_heads = (unsafe_key | unsafe_value).repeat_interleave(request.group, dim=1)[:, :, None, :]
    reached = (unsafe_query & allowed.any(-1)) | (allowed & of_heads).any(-1)
    bias = request.bias
    if isinstance(bias, Tensor):
        odd = ~(bias.detach() < torch.inf)
        reached = reached | (odd & allowed).any(-1)
        bias = zero_where(bias, odd)
    output = kernel(
        request.replace(
            query=zero_where(request.query, unsafe_query[..., None]),
            key=zero_where(request.key, unsafe_key[..., None]),
            value=zero_where(request.value, unsafe_value[..., None]),
        ).replace(bias=bias)
    )
    if not bool(reached.any()):
        return output
    # Compute all rows even if few are affected: a product's last bits depend on its number of rows, and must not depend
    # on hidden tokens.
    exact = reference_attention.compute_output(
        reference_attention.make_dot_product_problem(request), dropout=request.terms.dropout, dtype=output.dtype
    )
    return replace_where(output, reached[..., None], exact)


def _safe_bounds(request: Request) -> tuple[float, float]:
    """Compute the bounds from which elements of queries and keys, and of values, are unsafe.

    Kernels compute half precision in float32.
    """
    wide = torch.finfo(torch.promote_types(request.query.dtype, torch.float32))
    for_scores = (1 / (wide.eps * max(1.0, request.query.shape[3] * abs(request.terms.scale)))) ** 0.5
    return for_scores, wide.max**0.5


def _is_within(tensor: Tensor, bound: float) -> bool:
    """Whether the absolute values of all elements are below ``bound``; False for NaN."""
    # Usually a transposed view of (batch, length, heads, head_dim): undoing the transpose avoids a copy.
    turned = tensor.detach().transpose(1, 2)
    whole = turned if turned.is_contiguous() else tensor.detach()
    if whole.numel() == 0:
        return True
    lowest, highest = whole.aminmax()
    return float(lowest) > -bound and float(highest) < bound


def _find_unsafe_tokens(tensor: Tensor, bound: float) -> Bool[Tensor, "batch heads length"]:
    """True for tokens with an element whose absolute value is not below ``bound``."""
    return ~(tensor.detach().abs() < bound).all(-1)
