"""impl "sdpa": torch's fused ``scaled_dot_product_attention``, with regard's meaning of masks and empty rows.

Inside, a forbidden key meets a weight of 0, and 0 * NaN is NaN, so what this file adds is around the call:

    a query that may see nothing gives exactly 0;
    on a CPU, wild tokens (NaN, Inf, or so large that a score could overflow) are replaced by zeros, and the rows of
    queries that hold or may see one are computed in plain torch instead (``kernels.scored``): what the mask forbids has
    no influence, whatever it holds;
    on a GPU, where a look at the numbers would stall the device, only keys hidden from every query (padding) are
    replaced by zeros.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.kernels import scored
from regard.kernels.implementation import Implementation
from regard.kernels.request import Request
from regard.masks.base import Mask
from regard.positions.base import DistanceBias, PairBias


@final
class Sdpa(Implementation):
    """torch's own kernel."""

    name: ClassVar[str] = "sdpa"

    def refuses(self, request: Request) -> str | None:
        """Position terms that need the query or the weights."""
        if isinstance(request.bias, PairBias) and not isinstance(request.bias, DistanceBias):
            return f"sdpa takes a bias as a tensor, and {type(request.bias).__name__} needs the queries or the weights"
        return None

    def attention(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """One call of torch's kernel, and plain torch for the rows that wild tokens reach."""
        if request.mask is None:
            return _fused(request)
        if request.device.type != "cpu":
            return _fused(_blanked(request))
        return _fused(request) if _tame(request) else _around_wild_tokens(request)


def _fused(request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
    """The request by torch's kernel, for tokens that are tame."""
    bias, mask = _bias(request), request.mask
    if request.frame.keys == 0 or (mask is None and bias is None):
        return _call(request, None)
    if mask is None:
        return _without_empty_rows(request, bias)
    if bias is None and request.frame.offset >= 0 and mask.band(request.frame) == (None, 0):
        return _call(request, None, causal=True)
    allowed = mask.dense(request.frame.queries, request.frame.keys, device=request.device)
    return _without_empty_rows(request, allowed if bias is None else bias.masked_fill(~allowed, -torch.inf))


def _without_empty_rows(request: Request, mask: Tensor | None) -> Float[Tensor, "batch heads queries value_dim"]:
    """The call with a bool or additive mask; rows that may see nothing are computed on everything, and then set to 0.

    So their gradients are 0, and not NaN. A bias of -inf forbids as well.
    """
    assert mask is not None
    if mask.dtype == torch.bool:
        empty = ~mask.any(-1, keepdim=True)
    else:
        empty = mask.detach().amax(-1, keepdim=True) == -torch.inf
    if request.device.type == "cpu" and not bool(empty.any()):
        return _call(request, mask)
    whole = mask | empty if mask.dtype == torch.bool else mask.masked_fill(empty, 0.0)
    return _call(request, whole).masked_fill(empty, 0.0)


def _blanked(request: Request) -> Request:
    """Zeros in the keys and values that no query may see."""
    assert request.mask is not None
    unseen = ~_seen(request, request.mask)[..., None]
    return replace(request, key=request.key.masked_fill(unseen, 0.0), value=request.value.masked_fill(unseen, 0.0))


def _around_wild_tokens(request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
    """torch's kernel on zeros in place of wild tokens; plain torch for the rows that hold or may see one."""
    assert request.mask is not None
    bound = _bound(request)
    wild_query = _wild(request.query, bound)
    wild_key = _wild(request.key, bound) | _wild(request.value, bound)
    output = _fused(
        replace(
            request,
            query=request.query.masked_fill(wild_query[..., None], 0.0),
            key=request.key.masked_fill(wild_key[..., None], 0.0),
            value=request.value.masked_fill(wild_key[..., None], 0.0),
        )
    )
    allowed = request.mask.dense(request.frame.queries, request.frame.keys)
    of_heads = wild_key.repeat_interleave(request.group, dim=1)
    reached = wild_query | (allowed & of_heads[:, :, None, :]).any(-1)
    rows = reached.flatten(0, 1).any(0).nonzero().flatten()
    problem = scored.pose_dot_product(request)
    exact = scored.attend(problem, rows=rows, dropout=request.dropout, dtype=output.dtype)
    return output.index_copy(2, rows, torch.where(reached[:, :, rows, None], exact, output[:, :, rows]))


def _bound(request: Request) -> float:
    """Numbers up to this give scores that cannot overflow, with room to spare."""
    largest = torch.finfo(request.query.dtype).max / 8
    return float((largest / max(1.0, request.query.shape[3] * abs(request.scale))) ** 0.5)


def _tame(request: Request) -> bool:
    """Whether every number is finite and small enough. A NaN fails each comparison."""
    bound = _bound(request)
    for tensor in (request.query, request.key, request.value):
        # Usually a transposed view of (batch, length, heads, head_dim): looked at that way round it is not copied.
        turned = tensor.detach().transpose(1, 2)
        whole = turned if turned.is_contiguous() else tensor.detach()
        if whole.numel():
            lowest, highest = whole.aminmax()
            if not (float(lowest) > -bound and float(highest) < bound):
                return False
    return True


def _wild(tensor: Tensor, bound: float) -> Bool[Tensor, "batch heads length"]:
    """Which tokens hold a number that is not finite or not below the bound."""
    return ~(tensor.detach().abs() < bound).all(-1)


def _call(request: Request, mask: Tensor | None, *, causal: bool = False) -> Tensor:
    with torch.autocast(request.device.type, enabled=False):  # the output has the query's dtype
        return scaled_dot_product_attention(
            request.query,
            request.key,
            request.value,
            attn_mask=mask,
            dropout_p=request.dropout,
            is_causal=causal,
            scale=request.scale,
            enable_gqa=request.group > 1,
        )


def _bias(request: Request) -> Float[Tensor, "#batch #heads #queries #keys"] | None:
    """The bias as a tensor in the query's dtype."""
    if isinstance(request.bias, PairBias):
        rows = request.frame.all_rows(request.device)
        return request.bias.scores(request.query, request.frame, rows, request.scale)
    return None if request.bias is None else request.bias.to(request.query.dtype)


def _seen(request: Request, mask: Mask) -> Bool[Tensor, "#batch #key_heads keys"]:
    """Keys that some query may see, by key head."""
    queries, keys = request.frame.queries, request.frame.keys
    band = mask.band(request.frame)
    if band is not None:  # query i sees i + low to i + high: no need of queries x keys cells
        low, high = band
        key = torch.arange(keys, device=request.device)
        after = torch.ones_like(key, dtype=torch.bool) if low is None else key >= low
        return (after if high is None else after & (key <= queries - 1 + high))[None, None]
    seen = mask.dense(queries, keys, device=request.device).any(-2).expand(-1, -1, keys)
    if seen.shape[1] > 1 and request.group > 1:
        seen = seen.unflatten(1, (-1, request.group)).any(2)
    return seen
