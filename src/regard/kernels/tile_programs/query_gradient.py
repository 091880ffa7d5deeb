"""The gradient of the queries, in a pass over the rows of a tile map, in Triton.

dq_i = scale * sum_j ds_ij k_j           ds: see ``score_gradients``
"""

import triton
import triton.language as tl

from regard.kernels.tile_programs.score_gradients import differentiate_cells, load_rows
from regard.kernels.tile_programs.scores import allowed_cells, find_list, tile_at
from regard.kernels.tile_programs.tokens import load_keys_and_values, store_tokens


@triton.jit
def differentiate_queries(query, key, value, tiles, terms, normalizer, upstream, of_query, sizes, blocks: tl.constexpr):
    """Compute ``of_query`` (batch, heads, queries, head_dim)."""
    parts = tl.cdiv(sizes.queries, blocks.rows)
    part, pair = tl.program_id(0) % parts, tl.program_id(0) // parts
    batch, head = pair // sizes.heads, pair % sizes.heads
    row = part * blocks.rows + tl.arange(0, blocks.rows)
    of_rows = load_rows(query, terms, normalizer, upstream, batch, head, row, sizes, blocks)
    summed = tl.full([blocks.rows, blocks.padded_head_dim], 0, tl.float32)
    bounds = find_list(tiles, batch, head, part * blocks.rows // 64, tl.cdiv(sizes.keys, 64))
    for is_partial in tl.static_range(2 if tiles is not None else 1):
        for entry in range(bounds[is_partial], bounds[is_partial + 1]):
            summed = _add_tile(
                summed, of_rows, key, value, tiles, terms, upstream, batch, head, row, entry, sizes, blocks, is_partial
            )
    summed *= terms.scale
    store_tokens(of_query, batch, head, row, sizes.queries, summed, blocks.head_dim, blocks.padded_head_dim)


@triton.jit
def _add_tile(
    summed,
    of_rows,
    key,
    value,
    tiles,
    terms,
    upstream,
    batch,
    head,
    row,
    entry,
    sizes,
    blocks: tl.constexpr,
    is_partial: tl.constexpr,
):
    """Add the cells of a tile to the gradients of some queries."""
    q, of_output, is_bad_query, largest, log_sum = of_rows
    first = tile_at(tiles, entry) * 64
    for part in range(64 // blocks.columns):
        column = first + part * blocks.columns + tl.arange(0, blocks.columns)
        k, v, is_bad_key = load_keys_and_values(key, value, terms, batch, head // sizes.group, column, sizes, blocks)
        allowed = allowed_cells(tiles, entry, row, column, sizes, is_partial)
        _, _, of_products = differentiate_cells(
            q, of_output, is_bad_query, largest, log_sum, k, v, is_bad_key, allowed, terms, upstream, batch, head, row,
            column, sizes, blocks,
        )  # fmt: skip
        summed = tl.dot(of_products.to(k.dtype), k, summed, input_precision=blocks.precision)
    return summed
