"""Arguments of the native kernels besides query, key and value: mask, scale, bias and dropout.

    score_ij = scale * q_i . k_j + bias_ij + table[j - position(i)]       where the mask allows, else -infinity

With a softcap c, c tanh(scale * q_i . k_j / c) takes the place of the first term; sinks are terms of the sum of the
softmax.

Masks are lowered (``masks.kernel_mask``), so that kernels do not depend on mask classes. A bias by distance is passed
as its table, which torch computes, so that gradients flow to its parameters.
"""

from __future__ import annotations

from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from regard.contract import Frame
from regard.kernels.request import Bias, Request
from regard.masks.base import Mask
from regard.masks.kernel_mask import KernelMask
from regard.positions.base import DistanceBias, distance_range

_NUM_SEEDS = 2**63 - 1
_NO_MASK = KernelMask()

SCHEMA = (
    "SymInt? low, SymInt? high, Tensor? start, Tensor? stop, Tensor? row_start, Tensor? key_tile, Tensor? bitmap, "
    "Tensor? bitmaps, Tensor? dense, float scale, Tensor? bias, Tensor? table, SymInt table_lowest, float dropout, "
    "Tensor? seed, float? softcap, Tensor? sinks"
)
"""Schema of these arguments in torch operators."""


@final
class KernelArguments(NamedTuple):
    """Arguments of the native kernels, in the order of the operators' schemas."""

    low: int | None = None  # the mask's band, in indices
    high: int | None = None
    start: Tensor | None = None  # its interval of keys, (batch,) int64 each
    stop: Tensor | None = None
    row_start: Tensor | None = None  # its tile map: (batch or 1, heads or 1, query_tiles + 1)
    key_tile: Tensor | None = None
    bitmap: Tensor | None = None
    bitmaps: Tensor | None = None  # (distinct, 64)
    dense: Tensor | None = None  # its cells, bool, broadcastable to (batch, heads, queries, keys)
    scale: float = 1.0
    bias: Tensor | None = None  # any float dtype, broadcastable to (batch, heads, queries, keys)
    table: Tensor | None = None  # (heads or 1, distances) float32, float64 for float64
    table_lowest: int = 0  # the distance of the table's first column
    dropout: float = 0.0
    seed: Tensor | None = None  # int64 scalar; None without dropout
    softcap: float | None = None
    sinks: Tensor | None = None  # any float dtype, broadcastable to (batch, heads, queries, 1)

    def to_kwargs(self) -> dict[str, Any]:
        """Convert to keyword arguments of a kernel, with the number of threads; None and defaults are left out."""
        low, high, start, stop, row_start, key_tile, bitmap, bitmaps, dense, *others = self
        scale, bias, table, lowest, dropout, seed, softcap, sinks = others
        options: dict[str, Any] = {"scale": scale, "threads": torch.get_num_threads()}
        if low is not None:
            options["low"] = low
        if high is not None:
            options["high"] = high
        if start is not None:
            options["start"] = start
        if stop is not None:
            options["stop"] = stop
        if row_start is not None:
            options |= {"row_start": row_start, "key_tile": key_tile, "bitmap": bitmap, "bitmaps": bitmaps}
        if dense is not None:
            options["dense"] = dense
        if bias is not None:
            options["bias"] = bias
        if table is not None:
            options |= {"table": table, "table_lowest": lowest}
        if seed is not None:
            options |= {"dropout": dropout, "seed": int(seed)}
        if softcap is not None:
            options["softcap"] = softcap
        if sinks is not None:
            options["sinks"] = sinks
        return options


def draw_seed(dropout: float) -> Tensor | None:
    """Draw the seed of a call's dropout from torch's generator; None without dropout."""
    return None if dropout == 0.0 else torch.randint(_NUM_SEEDS, (), device="cpu")


def to_kernel_arguments(request: Request) -> KernelArguments:
    """Convert a request. The seed of its dropout is drawn from the generator that ``torch.manual_seed`` seeds."""
    query, bias = request.query, request.bias
    return make_kernel_arguments(
        request.frame,
        query.shape[0],
        query.dtype,
        mask=request.mask,
        bias=bias,
        scale=request.scale,
        dropout=request.dropout,
        softcap=request.softcap,
        sinks=request.sinks,
    )


def make_kernel_arguments(
    frame: Frame,
    batch: int,
    dtype: torch.dtype,
    *,
    mask: Mask | None,
    bias: Bias | None,
    scale: float,
    dropout: float = 0.0,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> KernelArguments:
    """Convert the terms of scores, for queries of ``dtype``. Draws the seed of dropout, as ``to_kernel_arguments``."""
    lowered = _NO_MASK if mask is None else mask.lower(frame)
    start, stop = _expand_to_batch(lowered.start, batch), _expand_to_batch(lowered.stop, batch)
    row_start = key_tile = bitmap = bitmaps = None
    if lowered.tiles is not None:
        tiles = lowered.tiles
        row_start = tiles.row_start.unflatten(0, (tiles.batch, tiles.heads))
        key_tile, bitmap, bitmaps = tiles.key_tile, tiles.bitmap, tiles.bitmaps.flatten(1)
    dense = None if lowered.dense is None else lowered.dense.cpu()
    table, lowest = None, 0
    if isinstance(bias, DistanceBias):
        lowest, highest = distance_range(frame)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        table, bias = bias.table(lowest, highest).to("cpu", wide).contiguous(), None  # kernels read it along distances
    assert bias is None or isinstance(bias, Tensor), f"{bias} should have been refused"
    seed = draw_seed(dropout)
    return KernelArguments(
        lowered.low,
        lowered.high,
        start,
        stop,
        row_start,
        key_tile,
        bitmap,
        bitmaps,
        dense,
        scale,
        bias,
        table,
        lowest,
        dropout,
        seed,
        softcap,
        sinks,
    )


def _expand_to_batch(bounds: Tensor | None, batch: int) -> Tensor | None:
    """Expand a single bound to one per batch entry; None stays None."""
    if bounds is None:
        return None
    return bounds.cpu() if bounds.shape[0] == batch else bounds.cpu().expand(batch).contiguous()
