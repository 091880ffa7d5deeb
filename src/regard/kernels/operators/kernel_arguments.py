"""Arguments of the native kernels besides query, key and value: mask, scale, bias and dropout.

    score_ij = scale * q_i . k_j + bias_ij + table[j - position(i)]       where the mask allows, else -infinity

With a softcap c, c tanh(scale * q_i . k_j / c) takes the place of the first term; sinks are terms of the sum of the
softmax.

Masks are lowered (``masks.kernel_mask``), so that kernels do not depend on mask classes. A bias by distance is passed
as its table, which torch computes, so that gradients flow to its parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, final, get_type_hints

import torch
from torch import Tensor

from regard.contract import Frame
from regard.kernels.request import Request, Terms
from regard.masks.base import Mask
from regard.positions.base import DistanceBias, distance_range

_NUM_SEEDS = 2**63 - 1
_Optional: TypeAlias = Tensor | None
_MaskArguments: TypeAlias = tuple[
    int | None, int | None, _Optional, _Optional, _Optional, _Optional, _Optional, _Optional, _Optional
]
_NO_MASK: _MaskArguments = (None, None, None, None, None, None, None, None, None)


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
        options = {name: value for name, value in zip(_FIELDS, self, strict=False) if value is not None}
        options["threads"] = torch.get_num_threads()
        if self.seed is None:
            del options["dropout"]
        else:
            options["seed"] = int(self.seed)
        if self.table is None:
            del options["table_lowest"]
        return options


_FIELDS = KernelArguments._fields
_SCHEMA_TYPES = {
    int: "SymInt",
    int | None: "SymInt?",
    float: "float",
    float | None: "float?",
    Tensor | None: "Tensor?",
}
_ARGUMENT_TYPES = get_type_hints(KernelArguments)


def make_schema(names: Sequence[str] = KernelArguments._fields) -> str:
    """Make the schema of some of these arguments in torch operators."""
    return ", ".join(f"{_SCHEMA_TYPES[_ARGUMENT_TYPES[name]]} {name}" for name in names)


SCHEMA = make_schema()
"""Schema of all of these arguments in torch operators."""


def draw_seed(dropout: float) -> Tensor | None:
    """Draw the seed of a call's dropout from torch's generator; None without dropout."""
    return None if dropout == 0.0 else torch.randint(_NUM_SEEDS, (), device="cpu")


def to_kernel_arguments(request: Request) -> KernelArguments:
    """Convert the terms of a request."""
    return make_kernel_arguments(request.frame, request.query.shape[0], request.query.dtype, request.terms)


def make_kernel_arguments(frame: Frame, batch: int, dtype: torch.dtype, terms: Terms) -> KernelArguments:
    """Convert terms, for queries of ``dtype``: a mask and a bias are lowered.

    The seed of dropout is drawn from the generator that ``torch.manual_seed`` seeds.
    """
    bias = terms.bias
    table, lowest = None, 0
    if isinstance(bias, DistanceBias):
        lowest, highest = distance_range(frame)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        table, bias = bias.table(lowest, highest).to("cpu", wide).contiguous(), None  # kernels read it along distances
    assert bias is None or isinstance(bias, Tensor), f"{bias} should have been refused"
    return KernelArguments(
        *(_NO_MASK if terms.mask is None else _lower_mask(terms.mask, frame, batch)),
        terms.scale,
        bias,
        table,
        lowest,
        terms.dropout,
        draw_seed(terms.dropout),
        terms.softcap,
        terms.sinks,
    )


def _lower_mask(mask: Mask, frame: Frame, batch: int) -> _MaskArguments:
    """Lower a mask to the arguments from ``low`` to ``dense``."""
    lowered = mask.lower(frame)
    start, stop = _expand_to_batch(lowered.start, batch), _expand_to_batch(lowered.stop, batch)
    row_start = key_tile = bitmap = bitmaps = None
    if lowered.tiles is not None:
        tiles = lowered.tiles
        row_start = tiles.row_start.unflatten(0, (tiles.batch, tiles.heads))
        key_tile, bitmap, bitmaps = tiles.key_tile, tiles.bitmap, tiles.bitmaps.flatten(1)
    dense = None if lowered.dense is None else lowered.dense.cpu()
    return lowered.low, lowered.high, start, stop, row_start, key_tile, bitmap, bitmaps, dense


COMPUTED_TERMS = ("mask", *(name for name in Terms._fields if name in KernelArguments._fields))
"""The terms that the kernels compute."""


def _expand_to_batch(bounds: Tensor | None, batch: int) -> Tensor | None:
    """Expand a single bound to one per batch entry; None stays None."""
    if bounds is None:
        return None
    return bounds.cpu() if bounds.shape[0] == batch else bounds.cpu().expand(batch).contiguous()
