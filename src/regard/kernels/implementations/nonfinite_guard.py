"""Wild tokens, kept out of fused kernels.

A fused kernel multiplies forbidden keys by a weight of 0, and 0 * NaN is NaN; its backward pass recomputes weights as
exp(score - lse), where a score beyond 1/epsilon carries an error that can overflow. So a token is *wild* where it holds

    NaN or Inf,
    in query or key, a number so large that d |q| |k| |scale| could reach 1/epsilon of float32 (or float64),
    in value, a number whose product with a gradient could overflow.

``run_guarded`` gives the kernel zeros in place of wild tokens, and computes the rows of queries that hold or may see
one in plain torch (``reference.attention``). What the mask forbids then has no influence on any other row, whatever it
holds: the zeros lie in memory as the tokens did (``implementations.same_layout``), so the kernel takes the path that it
would have taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.kernels.implementations.same_layout import replace_where, zero_where
from regard.kernels.reference import attention as reference_attention
from regard.kernels.request import Request

Kernel = Callable[[Request], Tensor]


def is_safe(request: Request) -> bool:
    """Whether no token is wild and the bias, if it is a tensor, adds no NaN or +Inf. One look at all numbers."""
    for_scores, for_values = _tame_bounds(request)
    bounded = all(
        _is_within(tensor, bound)
        for tensor, bound in ((request.query, for_scores), (request.key, for_scores), (request.value, for_values))
    )
    if not bounded or not isinstance(request.bias, Tensor) or request.bias.numel() == 0:
        return bounded
    return float(request.bias.detach().amax()) < torch.inf


def run_guarded(request: Request, kernel: Kernel) -> Float[Tensor, "batch heads queries value_dim"]:
    """``kernel`` on zeros in place of wild tokens, and plain torch for the rows that wild tokens reach."""
    for_scores, for_values = _tame_bounds(request)
    wild_query = _find_wild_tokens(request.query, for_scores)
    wild_key, wild_value = _find_wild_tokens(request.key, for_scores), _find_wild_tokens(request.value, for_values)
    queries, keys = request.frame.queries, request.frame.keys
    allowed = torch.ones(1, 1, 1, keys, dtype=torch.bool, device=request.device)
    if request.mask is not None:
        allowed = request.mask.dense(queries, keys, device=request.device)
    of_heads = (wild_key | wild_value).repeat_interleave(request.group, dim=1)[:, :, None, :]
    reached = (wild_query & allowed.any(-1)) | (allowed & of_heads).any(-1)
    bias = request.bias
    if isinstance(bias, Tensor):
        odd = ~(bias.detach() < torch.inf)
        reached = reached | (odd & allowed).any(-1)
        bias = zero_where(bias, odd)
    output = kernel(
        replace(
            request,
            query=zero_where(request.query, wild_query[..., None]),
            key=zero_where(request.key, wild_key[..., None]),
            value=zero_where(request.value, wild_value[..., None]),
            bias=bias,
        )
    )
    if not bool(reached.any()):
        return output
    # All rows, also where few are reached: a product's last bits depend on its height, and so on what is hidden.
    exact = reference_attention.compute_output(
        reference_attention.make_dot_product_problem(request), dropout=request.dropout, dtype=output.dtype
    )
    return replace_where(output, reached[..., None], exact)


def _tame_bounds(request: Request) -> tuple[float, float]:
    """The largest tame number in queries and keys, and in values. Half precision is computed in float32 inside."""
    wide = torch.finfo(torch.promote_types(request.query.dtype, torch.float32))
    for_scores = (1 / (wide.eps * max(1.0, request.query.shape[3] * abs(request.scale)))) ** 0.5
    return for_scores, wide.max**0.5


def _is_within(tensor: Tensor, bound: float) -> bool:
    """Whether all numbers are smaller; a NaN is not."""
    # Usually a transposed view of (batch, length, heads, head_dim): looked at that way round it is not copied.
    turned = tensor.detach().transpose(1, 2)
    whole = turned if turned.is_contiguous() else tensor.detach()
    if whole.numel() == 0:
        return True
    lowest, highest = whole.aminmax()
    return float(lowest) > -bound and float(highest) < bound


def _find_wild_tokens(tensor: Tensor, bound: float) -> Bool[Tensor, "batch heads length"]:
    """Which tokens hold a number that is not smaller."""
    return ~(tensor.detach().abs() < bound).all(-1)
