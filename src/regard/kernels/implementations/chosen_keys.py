"""What the two operations of chosen keys share: chosen blocks of keys, and keys at given positions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.kernels.request import Request, is_scale_in_range
from regard.kernels.support import MAX_HEAD_DIM, unsupported_reason
from regard.masks.dense_mask import Keep

_CELLS_AT_ONCE = 1 << 23


def request_unsupported_reason(request: Request, choice: Tensor) -> str | None:
    """Return why the kernels of chosen keys do not support a request and its ``choice``; None if they do."""
    reason = unsupported_reason(request.query, request.key, request.value, choice)
    if reason is not None:
        return reason
    if not (is_scale_in_range(request.terms.scale) and request.terms.scale > 0):
        return "native takes scales from 2^-64 to 2^64"
    sizes = (*request.query.shape, *request.value.shape)
    if max(request.query.shape[3], request.value.shape[3]) > MAX_HEAD_DIM or 0 in sizes:
        return f"native takes a head_dim and value_dim from 1 to {MAX_HEAD_DIM}, and at least one query and key"
    return None


def attend_under_masks(
    request: Request,
    allowed: Callable[[Int[Tensor, " rows"]], Bool[Tensor, "batch #heads rows keys"]],
    choices: int,
    attend: Callable[[Request], Tensor],
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute exact attention to the ``allowed`` keys, some rows at a time; their masks have ``choices`` heads."""
    at_once = max(1, _CELLS_AT_ONCE // max(1, request.query.shape[0] * choices * request.frame.keys))
    outputs = [
        attend(request.replace(query=request.query[:, :, rows]).replace(mask=Keep(allowed(rows))))
        for rows in request.frame.all_rows(request.device).split(at_once)
    ]
    return torch.cat(outputs, dim=2) if len(outputs) > 1 else outputs[0]
