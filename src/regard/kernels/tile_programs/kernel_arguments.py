"""Arguments of the kernels of this folder, which share most of them.

An absent part is None, and a kernel is compiled for the parts that are there. Strides count elements. Tensors without
strides are contiguous: those of queries are (batch, heads, queries), those of keys (batch, key_heads, keys).
"""

from __future__ import annotations

from typing import Any, NamedTuple, final


@final
class Tokens(NamedTuple):
    """A tensor (batch, heads, length, size) whose last dimension is contiguous."""

    base: Any
    batch_stride: int
    head_stride: int
    row_stride: int


@final
class TileLists(NamedTuple):
    """The tiles of each row, or of each column, of a tile map: see ``masks.device_tiles``."""

    bounds: Any
    tile: Any
    bitmap: Any
    bitmaps: Any
    batch_stride: int  # 0 if the mask is the same in every batch entry
    head_stride: int
    lists: int  # rows, or columns, of tiles


@final
class BiasTensor(NamedTuple):
    """A tensor that broadcasts to (batch, heads, queries, keys): a stride of 0 where it does."""

    base: Any
    batch_stride: int
    head_stride: int
    query_stride: int
    key_stride: int


@final
class BiasTable(NamedTuple):
    """A table (heads or 1, distances): column key - query + shift is the bias of a cell."""

    base: Any
    head_stride: int
    shift: int


@final
class Sinks(NamedTuple):
    """Logits that broadcast to (batch, heads, queries): a stride of 0 where they do."""

    base: Any
    batch_stride: int
    head_stride: int
    query_stride: int


@final
class Terms(NamedTuple):
    """The terms of the scores, and the flags of tokens that are not finite (uint8)."""

    scale: float
    softcap: float | None
    bias: BiasTensor | None
    table: BiasTable | None
    sinks: Sinks | None
    bad_query: Any
    bad_key: Any


@final
class Sizes(NamedTuple):
    """Numbers of heads, of query heads that share a key head, of queries and of keys."""

    heads: int
    group: int
    queries: int
    keys: int


@final
class Normalizer(NamedTuple):
    """The largest term of each query's sum, the sink's included, and the logarithm of the sum divided by exp(it).

    A weight is exp((score - largest) - log_sum): of lse, their sum, large scores would leave no digits of log_sum.
    """

    largest: Any
    log_sum: Any


@final
class Blocks(NamedTuple):
    """Constants of a compiled kernel: how many queries and keys it takes at a time, and the sizes of heads.

    ``padded`` sizes are powers of two from 16. ``precision`` is that of products of float32.
    """

    rows: int
    columns: int
    head_dim: int
    padded_head_dim: int
    value_dim: int
    padded_value_dim: int
    precision: str


@final
class Upstream(NamedTuple):
    """The gradients of a call's results, and what the gradient of a score needs of them.

        dw_ij = dO_i . v_j - dH_i ln w_ij + dReceived_j + dTop_ij + dRows_ij    ds_ij = w_ij (dw_ij - delta_i)

    delta (batch, heads, queries) is sum_j w_ij dw_ij, with the sink's term, minus the gradient of lse.
    """

    output: Tokens | None
    delta: Any
    entropy: Any
    received: Any  # (batch, heads, keys)
    top_keys: Any  # (batch, heads, queries, top)
    top_weights: Any
    top: int
    rows: Tokens | None  # (batch, heads, asked rows, keys), all different
    row_places: Any  # (queries,) int32: which of the asked rows a query is; -1 for none
