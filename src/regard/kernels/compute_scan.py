"""The call of a scan by code that prepares its tokens in float32."""

from __future__ import annotations

import torch

from regard.kernels.reference.scan import ScanRequest, ScanResult
from regard.kernels.select import select


def compute_scan(impl: str, request: ScanRequest, dtype: torch.dtype) -> ScanResult:
    """Compute a scan of tokens that are in the dtype of sums, and came from tokens in ``dtype``.

    An implementation that takes tokens in the caller's dtype, as those of GPUs do, gets them rounded to it.
    """
    if request.query.is_cpu or request.query.dtype == dtype:
        selected = select("scan", impl, request)
    else:
        query, key, value = (side.to(dtype) for side in request[:3])
        rounded = request._replace(query=query, key=key, value=value)
        selected = select("scan", impl, rounded)
        request = rounded if selected.takes_rounded_tokens else request
    result: ScanResult = selected.compute(request)
    return result
