"""Attention over the visible keys alone, for masks that hide the same keys from every query of a batch entry.

The visible keys of all batch entries are concatenated, and each entry is one sequence of torch's ``varlen_attn``
(FlashAttention): hidden keys are not read, so that whatever they hold has no influence, and cost nothing. Entries
without a visible key take no part: their output is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import signature
from typing import Any, final

import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor
from torch.nn.functional import pad

from regard.copy_to_device import copy_to
from regard.kernels.request import Request
from regard.masks.base import CPU, Mask

_MULTIPLE = 8
"""FlashAttention takes heads of a multiple of 8 numbers; others are filled up with zeros."""


@cache
def is_varlen_available() -> bool:
    """Whether this torch has ``varlen_attn`` with a scale and grouped heads, as later versions than 2.10 have."""
    try:
        varlen = import_module("torch.nn.attention.varlen")
    except ImportError:
        return False
    return {"scale", "enable_gqa"} <= signature(varlen.varlen_attn).parameters.keys()


def call_varlen(*inputs: Any, **options: Any) -> Any:
    """Call torch's ``varlen_attn``, whose module is imported late: it registers operators."""
    return import_module("torch.nn.attention.varlen").varlen_attn(*inputs, **options)


@final
@dataclass(frozen=True)
class Packing:
    """Which keys are visible, on the device of the keys.

    entries     (entries,)       batch entries with a visible key
    keys        (visible,)       the visible keys of these, as indices into batch * keys
    query_ends  (entries + 1,)   where the queries of each entry begin and end
    key_ends    (entries + 1,)   where the visible keys of each entry begin and end
    """

    entries: Int[Tensor, " entries"]
    keys: Int[Tensor, " visible"]
    query_ends: Int32[Tensor, " entries_and_one"]
    key_ends: Int32[Tensor, " entries_and_one"]
    longest: int


def make_packing(mask: Mask, batch: int, queries: int, keys: int, device: torch.device) -> Packing:
    """List the visible keys of a mask that is the same for all queries and heads. Reads the values of the mask."""
    visible = mask.dense(1, keys, device=CPU)[:, 0, 0].expand(batch, keys)
    lengths = visible.sum(1)
    entries = lengths.nonzero()[:, 0]
    ends = torch.nn.functional.pad(lengths[entries].cumsum(0), (1, 0)).int()
    return Packing(
        entries=copy_to(entries, device),
        keys=copy_to(visible.flatten().nonzero()[:, 0], device),
        query_ends=copy_to((torch.arange(len(entries) + 1, device=CPU) * queries).int(), device),
        key_ends=copy_to(ends, device),
        longest=int(lengths.max()) if batch else 0,
    )


def run_varlen(request: Request, kernel: Callable[..., Any]) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute a request, whose mask is the same for all queries and heads, with ``kernel``: ``varlen_attn``."""
    mask, (batch, heads, queries, _) = request.mask, request.query.shape
    assert mask is not None
    keys, device, value_dim = request.frame.keys, request.device, request.value.shape[3]
    packing = mask.get_cached(
        ("packing", batch, queries, keys, device), lambda: make_packing(mask, batch, queries, keys, device)
    )
    is_whole = len(packing.entries) == batch
    query = request.query if is_whole else request.query.index_select(0, packing.entries)
    if len(packing.entries) == 0:
        nothing = request.query[..., :0].sum() + request.key[..., :0].sum() + request.value[..., :0].sum()
        return request.query.new_zeros(batch, heads, queries, value_dim) + nothing
    output = kernel(
        _fill_head(query.transpose(1, 2).flatten(0, 1)),
        *(_fill_head(_pack(side, packing.keys)) for side in (request.key, request.value)),
        packing.query_ends,
        packing.key_ends,
        queries,
        packing.longest,
        scale=request.terms.scale,
        enable_gqa=request.group > 1,
    )
    output = output[..., :value_dim].unflatten(0, (-1, queries)).transpose(1, 2)
    if is_whole:
        return output
    return output.new_zeros(batch, *output.shape[1:]).index_copy(0, packing.entries, output)


def _pack(
    tokens: Float[Tensor, "batch key_heads keys size"], visible: Int[Tensor, " visible"]
) -> Float[Tensor, "visible key_heads size"]:
    """Concatenate the visible tokens of all batch entries."""
    return tokens.transpose(1, 2).flatten(0, 1).index_select(0, visible)


def _fill_head(tokens: Float[Tensor, "tokens heads size"]) -> Float[Tensor, "tokens heads filled"]:
    """Fill up heads with zeros, which change neither scores nor outputs."""
    missing = -tokens.shape[2] % _MULTIPLE
    return pad(tokens, (0, missing)) if missing else tokens
