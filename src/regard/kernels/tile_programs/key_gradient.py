"""The gradients of keys and values, in a pass over the columns of a tile map, in Triton.

    dk_j = scale * sum_i ds_ij q_i        dv_j = sum_i w_ij dO_i        ds: see ``score_gradients``

A program computes ``blocks.columns`` keys of one key head, and adds the query heads that share it one after another: no
atomic additions, so bits repeat.
"""

import triton
import triton.language as tl

from regard.kernels.tile_programs.score_gradients import differentiate_cells, load_rows
from regard.kernels.tile_programs.scores import allowed_cells, find_list, tile_at
from regard.kernels.tile_programs.tokens import load_keys_and_values, store_tokens


@triton.jit
def differentiate_keys(
    query, key, value, tiles, terms, normalizer, upstream, of_key, of_value, sizes, blocks: tl.constexpr
):
    """Compute ``of_key`` and ``of_value`` (batch, key_heads, keys, ..); ``tiles`` are those of columns."""
    parts = tl.cdiv(sizes.keys, blocks.columns)
    part, pair = tl.program_id(0) % parts, tl.program_id(0) // parts
    key_heads = sizes.heads // sizes.group
    batch, key_head = pair // key_heads, pair % key_heads
    column = part * blocks.columns + tl.arange(0, blocks.columns)
    of_columns = load_keys_and_values(key, value, terms, batch, key_head, column, sizes, blocks)
    of_k = tl.full([blocks.columns, blocks.padded_head_dim], 0, tl.float32)
    of_v = tl.full([blocks.columns, blocks.padded_value_dim], 0, tl.float32)
    for head in range(key_head * sizes.group, (key_head + 1) * sizes.group):
        bounds = find_list(tiles, batch, head, part * blocks.columns // 64, tl.cdiv(sizes.queries, 64))
        for is_partial in tl.static_range(2 if tiles is not None else 1):
            for entry in range(bounds[is_partial], bounds[is_partial + 1]):
                of_k, of_v = _add_tile(
                    of_k, of_v, of_columns, query, tiles, terms, normalizer, upstream, batch, head, column, entry,
                    sizes, blocks, is_partial,
                )  # fmt: skip
    of_k *= terms.scale
    store_tokens(of_key, batch, key_head, column, sizes.keys, of_k, blocks.head_dim, blocks.padded_head_dim)
    store_tokens(of_value, batch, key_head, column, sizes.keys, of_v, blocks.value_dim, blocks.padded_value_dim)


@triton.jit
def _add_tile(
    of_k,
    of_v,
    of_columns,
    query,
    tiles,
    terms,
    normalizer,
    upstream,
    batch,
    head,
    column,
    entry,
    sizes,
    blocks: tl.constexpr,
    is_partial: tl.constexpr,
):
    """Add the cells of a tile to the gradients of some keys and values."""
    k, v, is_bad_key = of_columns
    first = tile_at(tiles, entry) * 64
    for part in range(64 // blocks.rows):
        row = first + part * blocks.rows + tl.arange(0, blocks.rows)
        q, of_output, is_bad_query, largest, log_sum = load_rows(
            query, terms, normalizer, upstream, batch, head, row, sizes, blocks
        )
        allowed = allowed_cells(tiles, entry, row, column, sizes, is_partial)
        weights, _, of_products = differentiate_cells(
            q, of_output, is_bad_query, largest, log_sum, k, v, is_bad_key, allowed, terms, upstream, batch, head, row,
            column, sizes, blocks,
        )  # fmt: skip
        of_k = tl.dot(tl.trans(of_products.to(q.dtype)), q, of_k, input_precision=blocks.precision)
        if upstream.output is not None:
            weights = tl.trans(weights.to(of_output.dtype))
            of_v = tl.dot(weights, of_output, of_v, input_precision=blocks.precision)
    return of_k, of_v
