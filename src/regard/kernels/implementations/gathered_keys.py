"""Exact attention to the keys at given positions: by rows where they are, or under a mask.

A mechanism that chooses single keys for each query (``mechanisms.top_k``, ``mechanisms.dsa``) is a request of this
operation.

    native       kernels that read the rows of the chosen keys of a query; heads with one choice read a row once
    masked       exact attention under a dense mask, some rows at a time
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor

from regard.kernels.implementation import Implementation
from regard.kernels.operators import gathered_keys_op
from regard.kernels.operators.kernel_arguments import draw_seed
from regard.kernels.request import Request, is_scale_in_range
from regard.kernels.support import MAX_HEAD_DIM, unsupported_reason
from regard.masks.dense_mask import Keep

_MOST_OF_KEYS = 0.25
"""With more of the keys chosen, multiplying all of them in tiles takes less time than reading rows one by one."""


@final
@dataclass(frozen=True)
class GatheredKeysRequest:
    """One call: ``request`` has no mask and no bias, and dropout of weights as attention has.

    Args:
        request: query (batch, heads, queries, head_dim), key and value (batch, key_heads, keys, ..), and the scale.
        positions: (batch, position_heads, queries, count), the keys of each query, ascending and distinct, and -1
            behind the last one; position_heads is 1, the number of key heads, or the number of heads.
        attend: computes exact attention, for "masked".
    """

    request: Request
    positions: Int32[Tensor, "batch position_heads queries count"]
    attend: Callable[[Request], Tensor]

    def allowed(self, rows: Int[Tensor, " rows"]) -> Bool[Tensor, "batch #heads rows keys"]:
        """Return the keys that some queries attend to; one head if it is the same in all."""
        heads, keys = self.request.query.shape[1], self.request.frame.keys
        positions = self.positions[:, :, rows].long()
        allowed = torch.zeros(*positions.shape[:3], keys + 1, dtype=torch.bool, device=positions.device)
        allowed = allowed.scatter(3, positions.masked_fill(positions < 0, keys), True)[..., :keys]
        return (
            allowed if allowed.shape[1] in (1, heads) else allowed.repeat_interleave(heads // allowed.shape[1], dim=1)
        )

    def describe(self) -> str:
        """The request in one line, for messages."""
        return f"{self.request.describe()}, {self.positions.shape[3]} keys of each query"


def _refuses(request: GatheredKeysRequest) -> str | None:
    """Refuse other devices, dtypes and transforms."""
    return request_unsupported_reason(request.request, request.positions)


def _auto_skips(request: GatheredKeysRequest) -> str | None:
    call = request.request
    if request.positions.shape[3] > _MOST_OF_KEYS * call.frame.keys and call.frame.keys >= 512:
        return f"more than {_MOST_OF_KEYS:.0%} of the keys are chosen, so that a mask takes less time"
    return None


def _native(request: GatheredKeysRequest) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute it with the kernels; half precision in float32, rounded once."""
    call = request.request
    scale, dropout = call.terms.scale, call.terms.dropout
    return gathered_keys_op.gathered_keys(
        call.query, call.key, call.value, request.positions, scale, dropout, draw_seed(dropout)
    )


def _masked(request: GatheredKeysRequest) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute it by exact attention, some rows at a time."""
    choices = 1 if request.positions.shape[1] == 1 else request.request.query.shape[1]
    return attend_under_masks(request.request, request.allowed, choices, request.attend)


NATIVE = Implementation(
    "native", _native, _refuses, _auto_skips, why_chosen="regard's own kernels, which read the rows of the chosen keys"
)
MASKED = Implementation("masked", _masked, why_chosen="takes any device and any number of derivatives")


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
