"""The forms in which torch's fused kernel takes a mask on a GPU, and which of them serves a request.

Only the last form holds a tensor of queries x keys; the others are computed by FlashAttention or memory-efficient
attention in tiles, and the causal ones skip half of them. Of a request only shapes, dtypes and the class of the mask
are read, so the form is known without a GPU.
"""

from __future__ import annotations

from enum import Enum
from typing import final

import torch

from regard.kernels.implementations.varlen import is_varlen_available
from regard.kernels.request import Request
from regard.kernels.tracing import in_functorch
from regard.positions.base import PairBias

_MAX_VARLEN_DIM = 256
"""Widest head of FlashAttention."""


@final
class Form(Enum):
    """How the kernel is told the mask; the value describes it for messages."""

    UNMASKED = "without a mask"
    ONE_QUERY = "over the range of keys that the single query sees"
    CAUSAL = "in its causal form"
    CAUSAL_END = "in its causal form that is aligned at the last key"
    VARLEN = "in its form for sequences of different lengths, over the visible keys alone"
    SMALL = "with a dense mask, which is small here"
    DENSE = "with a dense mask"


def find_form(request: Request) -> Form:
    """Return the form of a request for a device other than the CPU."""
    mask, bias, frame = request.mask, request.bias, request.frame
    dense = Form.SMALL if request.has_few_cells else Form.DENSE
    if bias is not None:
        return dense
    if mask is None:
        return Form.UNMASKED
    if _is_varlen(request):
        return Form.VARLEN
    band = mask.band(frame)
    if band is None or frame.queries == 0 or frame.keys == 0:
        return dense
    low, high = band
    sees_first_key = low is None or low <= 1 - frame.queries  # also the last query does
    if sees_first_key and (high is None or high >= frame.keys - 1):
        return Form.UNMASKED
    if frame.queries == 1:
        start, stop = key_range(request)
        return Form.ONE_QUERY if start < stop else dense
    if not sees_first_key or frame.offset < 0:
        return dense
    if high == 0:
        return Form.CAUSAL
    if high == frame.offset and _has_causal_end(request):
        return Form.CAUSAL_END
    return dense


def key_range(request: Request) -> tuple[int, int]:
    """Return the first key that the single query of a band sees, and the key behind the last one."""
    assert request.mask is not None
    band = request.mask.band(request.frame)
    assert band is not None
    low, high = band
    keys = request.frame.keys
    return max(low or 0, 0), keys if high is None else min(high + 1, keys)


def dense_bytes(request: Request) -> int:
    """Return the memory of the dense mask or bias that the kernel would take, as far as it does not exist yet."""
    frame, mask, bias = request.frame, request.mask, request.bias
    cells = frame.queries * frame.keys
    sizes = [(1, 1)]
    if mask is not None:
        sizes.append((mask.batch or 1, mask.heads or 1))
    if isinstance(bias, PairBias):
        sizes.append((1, request.query.shape[1]))
    elif bias is not None:
        sizes.append((bias.shape[0], bias.shape[1]))
    planes = max(batch for batch, _ in sizes) * max(heads for _, heads in sizes)
    # Torch converts a bool mask to the dtype of the query, and a bias is computed in float32 or wider.
    each = 1 + request.query.dtype.itemsize if bias is None else max(4, request.query.dtype.itemsize)
    return planes * cells * each


def _is_varlen(request: Request) -> bool:
    """Whether every query of a batch entry sees the same keys, and FlashAttention computes the request."""
    mask, query = request.mask, request.query
    assert mask is not None
    return (
        request.target.is_at_least(8)
        and is_varlen_available()
        and not mask.depends_on_query
        and mask.heads in (None, 1)
        and query.dtype in (torch.float16, torch.bfloat16)
        and query.shape[3] == request.value.shape[3] <= _MAX_VARLEN_DIM
        and request.terms.dropout == 0
        and not request.has_few_cells
        and not torch.compiler.is_compiling()  # the number of visible keys is a size
        and not in_functorch()
    )


def _has_causal_end(request: Request) -> bool:
    """Whether torch's bias ``causal_lower_right`` reaches a kernel that needs no dense mask."""
    return request.device_type in ("cuda", "xpu") and not torch.compiler.is_compiling() and not in_functorch()
