"""Attention with the normalizer of each query, over the tile map of a mask, in Triton.

    m_i = max_j s_ij    l_i = sum_j exp(s_ij - m_i)    lse_i = m_i + ln l_i    o_i = sum_j exp(s_ij - m_i) v_j / l_i

The maximum and the sums run over the tiles of a row: when the maximum rises, the sums so far are multiplied by
exp(old - new) (Milakov and Gimelshein 2018, algorithm 3; Dao 2023, section 3.1.1). A sink z_i adds exp(z_i - m_i) to
the sum. A program computes ``blocks.rows`` queries of one head; nothing is shared between programs, so bits repeat.

    query   (batch, heads, queries, head_dim)      key    (batch, key_heads, keys, head_dim)
    output  (batch, heads, queries, value_dim)     value  (batch, key_heads, keys, value_dim)

A row is NaN if it has an allowed cell and its query is not finite, or a score is +infinity (``scores``): its maximum is
then infinite, and exp(infinity - infinity) makes its sum NaN. A row without an allowed cell has an output of 0.
"""

import triton
import triton.language as tl

from regard.kernels.tile_programs.scores import allowed_cells, find_list, score_cells, tile_at
from regard.kernels.tile_programs.tokens import load_keys_and_values, load_queries, place_of, store_tokens


@triton.jit
def compute_output(
    query, key, value, tiles, terms, output, max_score, normalizer, lse, sink_weight, sizes, blocks: tl.constexpr
):
    """Compute ``output``, and in float32 the other results, (batch, heads, queries) each."""
    parts = tl.cdiv(sizes.queries, blocks.rows)
    part, pair = tl.program_id(0) % parts, tl.program_id(0) // parts
    batch, head = pair // sizes.heads, pair % sizes.heads
    row = part * blocks.rows + tl.arange(0, blocks.rows)
    exists = row < sizes.queries
    place = place_of(batch, head, sizes.heads, row, sizes.queries)
    q, is_bad = load_queries(query, terms, batch, head, row, sizes, blocks)
    highest = tl.full([blocks.rows], float("-inf"), tl.float32)
    total = tl.full([blocks.rows], 0, tl.float32)
    summed = tl.full([blocks.rows, blocks.padded_value_dim], 0, tl.float32)
    bounds = find_list(tiles, batch, head, part * blocks.rows // 64, tl.cdiv(sizes.keys, 64))
    for is_partial in tl.static_range(2 if tiles is not None else 1):
        for entry in range(bounds[is_partial], bounds[is_partial + 1]):
            highest, total, summed = _add_tile(
                highest, total, summed, q, is_bad, key, value, tiles, terms, batch, head, row, entry, sizes, blocks,
                is_partial,
            )  # fmt: skip
    is_empty = highest == float("-inf")
    shift = highest
    if terms.sinks is not None:
        sinks = terms.sinks
        base = sinks.base + batch * sinks.batch_stride + head * sinks.head_stride
        sink = tl.load(base + row.to(tl.int64) * sinks.query_stride, mask=exists, other=0.0).to(tl.float32)
        sink = tl.where(sink == sink, sink, float("inf"))
        shift = tl.maximum(highest, sink)
        factor, of_sink = tl.exp(highest - shift), tl.exp(sink - shift)
        total = total * factor + of_sink
        summed = summed * factor[:, None]
        share = tl.where(is_empty, 0.0, of_sink / total)
        share = tl.where((is_bad != 0) & (highest > float("-inf")), float("nan"), share)
        tl.store(sink_weight + place, share, mask=exists)
    is_nan = (total != total) | (is_bad != 0)
    nan = tl.where(is_nan & (highest > float("-inf")), float("nan"), 0.0)
    shift = tl.where(is_empty, float("-inf"), shift)
    log_sum = tl.where(is_empty, 0.0, tl.log(total)) + nan
    tl.store(max_score + place, highest + nan, mask=exists)
    tl.store(normalizer.largest + place, shift + nan, mask=exists)
    tl.store(normalizer.log_sum + place, log_sum, mask=exists)
    tl.store(lse + place, shift + log_sum, mask=exists)
    summed = tl.where(is_empty[:, None], 0.0, summed / total[:, None] + nan[:, None])
    store_tokens(output, batch, head, row, sizes.queries, summed, blocks.value_dim, blocks.padded_value_dim)


@triton.jit
def _add_tile(
    highest,
    total,
    summed,
    q,
    is_bad_query,
    key,
    value,
    tiles,
    terms,
    batch,
    head,
    row,
    entry,
    sizes,
    blocks: tl.constexpr,
    is_partial: tl.constexpr,
):
    """Add the cells of a tile to the maximum and the sums of some queries."""
    first = tile_at(tiles, entry) * 64
    for part in range(64 // blocks.columns):
        column = first + part * blocks.columns + tl.arange(0, blocks.columns)
        k, v, is_bad = load_keys_and_values(key, value, terms, batch, head // sizes.group, column, sizes, blocks)
        allowed = allowed_cells(tiles, entry, row, column, sizes, is_partial)
        _, scores = score_cells(q, is_bad_query, k, is_bad, allowed, terms, batch, head, row, column, sizes, blocks)
        higher = tl.maximum(highest, tl.max(scores, 1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        weights, factor = tl.exp(scores - shift[:, None]), tl.exp(highest - shift)
        total = total * factor + tl.sum(weights, 1)
        summed = tl.dot(weights.to(v.dtype), v, summed * factor[:, None], input_precision=blocks.precision)
        highest = higher
    return highest, total, summed
