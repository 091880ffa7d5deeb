"""impl "sdpa": torch's fused ``scaled_dot_product_attention``, with regard's meaning of masks and empty rows.

What it adds around the call: keys that are hidden from every query (padding) are replaced by zeros, so nothing they
hold can matter; a query that may see nothing gives 0. A key that only some queries may see still meets a
weight of 0 inside, so NaN or Inf there, or numbers so large that a score overflows, reach those queries too:
use "reference" where that can be.
"""

from __future__ import annotations

from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.kernels.implementation import Implementation
from regard.kernels.request import Request
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
        """One call of torch's kernel."""
        query, key, value = request.query, request.key, request.value
        bias = _bias(request)
        if request.mask is None:
            return _call(request, query, key, value, bias)
        causal = request.mask.band(request.frame) == (None, 0)
        if causal and bias is None and request.frame.queries <= request.frame.keys:
            unseen = request.frame.keys - request.frame.queries  # beyond the last query: hidden from all
            key, value = (_blank_tail(tensor, unseen) for tensor in (key, value))
            return _call(request, query, key, value, None, causal=True)
        allowed = request.mask.dense(request.frame.queries, request.frame.keys, device=request.device)
        seen = _seen(request, allowed)[..., None]
        key, value = key.masked_fill(~seen, 0.0), value.masked_fill(~seen, 0.0)
        bad = ~query.isfinite().all(-1, keepdim=True)
        empty = ~allowed.any(-1, keepdim=True)
        # An empty row is computed as if it saw everything, and then set to 0: so its gradients are 0 and not NaN.
        allowed = allowed | empty
        mask = allowed if bias is None else bias.masked_fill(~allowed, -torch.inf)
        output = _call(request, query.masked_fill(bad, 0.0), key, value, mask)
        return output.masked_fill(bad, torch.nan).masked_fill(empty, 0.0)


def _call(
    request: Request, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, causal: bool = False
) -> Tensor:
    return scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=request.dropout,
        is_causal=causal,
        scale=request.scale,
        enable_gqa=request.group > 1,
    )


def _bias(request: Request) -> Float[Tensor, "#batch #heads #queries keys"] | None:
    """The bias as a tensor in the query's dtype."""
    if isinstance(request.bias, PairBias):
        rows = request.frame.all_rows(request.device)
        return request.bias.scores(request.query, request.frame, rows, request.scale)
    return None if request.bias is None else request.bias.to(request.query.dtype)


def _blank_tail(tensor: Tensor, count: int) -> Tensor:
    """Zeros in the last ``count`` tokens."""
    if count == 0:
        return tensor
    hidden = torch.arange(tensor.shape[2], device=tensor.device) >= tensor.shape[2] - count
    return tensor.masked_fill(hidden[:, None], 0.0)


def _seen(
    request: Request, allowed: Bool[Tensor, "#batch #heads #queries #keys"]
) -> Bool[Tensor, "#batch #heads keys"]:
    """Keys that some query may see, by key head."""
    seen = allowed.any(-2).expand(-1, -1, request.frame.keys)
    if seen.shape[1] > 1 and request.group > 1:
        seen = seen.unflatten(1, (-1, request.group)).any(2)
    return seen
