"""Exact attention to the keys at given positions: by rows where they are, or under a mask.

A mechanism that chooses single keys for each query (``mechanisms.top_k``, ``mechanisms.dsa``) is a request of this
operation.

    native       kernels that read the rows of the chosen keys of a query; heads with one choice read a row once
    masked       exact attention under a dense mask, some rows at a time
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor

from regard.kernels.implementation import Implementation
from regard.kernels.operators import gathered_keys_op
from regard.kernels.request import Request, is_scale_in_range
from regard.kernels.support import MAX_HEAD_DIM, unsupported_reason
from regard.masks.dense_mask import Keep

_CELLS_AT_ONCE = 1 << 23
_NUM_SEEDS = 2**63 - 1
_MOST_OF_KEYS = 0.25
"""With more of the keys chosen, multiplying all of them in tiles takes less time than reading rows one by one."""


@final
@dataclass(frozen=True)
class GatheredKeysRequest:
    """One call: ``request`` has no mask and no bias, and dropout of weights as attention has.

    Args:
        request: query (batch, heads, queries, head_dim), key and value (batch, key_heads, keys, ..), and the scale.
        positions: (batch, position_heads, queries, count), the keys of each query, ascending and distinct, and -1
            behind the last one; position_heads is 1, the number of key heads, or that of heads.
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
    one = request.request
    reason = unsupported_reason(one.query, one.key, one.value, request.positions)
    if reason is not None:
        return reason
    if not (is_scale_in_range(one.scale) and one.scale > 0):
        return "native takes scales from 2^-64 to 2^64"
    if max(one.query.shape[3], one.value.shape[3]) > MAX_HEAD_DIM or 0 in (*one.query.shape, *one.value.shape):
        return f"native takes a head_dim and value_dim from 1 to {MAX_HEAD_DIM}, and at least one query and key"
    return None


def _auto_skips(request: GatheredKeysRequest) -> str | None:
    one = request.request
    if request.positions.shape[3] > _MOST_OF_KEYS * one.frame.keys and one.frame.keys >= 512:
        return f"more than {_MOST_OF_KEYS:.0%} of the keys are chosen, so that a mask takes less time"
    return None


def _native(request: GatheredKeysRequest) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute it with the kernels; half precision in float32, rounded once."""
    one = request.request
    seed = None if one.dropout == 0.0 else torch.randint(_NUM_SEEDS, (), device="cpu")
    return gathered_keys_op.gathered_keys(
        one.query, one.key, one.value, request.positions, one.scale, one.dropout, seed
    )


def _masked(request: GatheredKeysRequest) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute it by exact attention, some rows at a time."""
    one = request.request
    batch, heads, queries, _ = one.query.shape
    choices = 1 if request.positions.shape[1] == 1 else heads
    at_once = max(1, _CELLS_AT_ONCE // max(1, batch * choices * one.frame.keys))
    outputs = [one.query.new_zeros(batch, heads, 0, one.value.shape[3])]
    for rows in one.frame.all_rows(one.device).split(at_once) if queries else ():
        of_rows = replace(one, query=one.query[:, :, rows], mask=Keep(request.allowed(rows)))
        outputs.append(request.attend(of_rows))
    return torch.cat(outputs, dim=2) if len(outputs) != 2 else outputs[1]


NATIVE = Implementation(
    "native", _native, _refuses, _auto_skips, merit="regard's own kernels, which read the rows of the chosen keys"
)
MASKED = Implementation("masked", _masked, merit="takes any device and any number of derivatives")
