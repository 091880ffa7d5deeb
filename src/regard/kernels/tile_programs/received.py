"""The weight that each key received, summed over the queries, in a pass over the columns of a tile map, in Triton.

    received_j = sum_i w_ij

A program computes ``blocks.columns`` keys of one query head, and adds its queries in the order of the map: no atomic
additions, so bits repeat. A key is NaN if a row of NaN may see it.
"""

import triton
import triton.language as tl

from regard.kernels.tile_programs.scores import (
    allowed_cells,
    capped_products,
    find_list,
    hidden_scores,
    load_tokens,
    log_weights,
    tile_at,
)


@triton.jit
def sum_columns(query, key, tiles, terms, normalizer, received, sizes, blocks: tl.constexpr):
    """Compute ``received`` (batch, heads, keys), float32; ``tiles`` are those of columns."""
    parts = tl.cdiv(sizes.keys, blocks.columns)
    part, pair = tl.program_id(0) % parts, tl.program_id(0) // parts
    batch, head = pair // sizes.heads, pair % sizes.heads
    key_head = head // sizes.group
    column = part * blocks.columns + tl.arange(0, blocks.columns)
    exists = column < sizes.keys
    of_key = tl.cast(batch * (sizes.heads // sizes.group) + key_head, tl.int64) * sizes.keys + column
    is_bad = tl.load(terms.bad_key + of_key, mask=exists, other=1)
    k = load_tokens(key, batch, key_head, column, is_bad == 0, blocks.head_dim, blocks.padded_head_dim)
    sums = tl.zeros([blocks.columns], tl.float32)
    begin, middle, end = find_list(tiles, batch, head, part * blocks.columns // 64, tl.cdiv(sizes.queries, 64))
    for entry in range(begin, middle):
        sums = _add_tile(
            sums, k, is_bad, query, tiles, terms, normalizer, batch, head, column, entry, sizes, blocks, False
        )
    if tiles is not None:
        for entry in range(middle, end):
            sums = _add_tile(
                sums, k, is_bad, query, tiles, terms, normalizer, batch, head, column, entry, sizes, blocks, True
            )
    tl.store(received + tl.cast(pair, tl.int64) * sizes.keys + column, sums, mask=exists)


@triton.jit
def _add_tile(
    sums,
    k,
    is_bad_key,
    query,
    tiles,
    terms,
    normalizer,
    batch,
    head,
    column,
    entry,
    sizes,
    blocks: tl.constexpr,
    is_partial: tl.constexpr,
):
    """Add the weights of a tile to the sums of some keys."""
    first = tile_at(tiles, entry) * 64
    for part in tl.static_range(64 // blocks.rows):
        row = first + part * blocks.rows + tl.arange(0, blocks.rows)
        exists = row < sizes.queries
        place = tl.cast(batch * sizes.heads + head, tl.int64) * sizes.queries + row
        is_bad = tl.load(terms.bad_query + place, mask=exists, other=0)
        largest = tl.load(normalizer.largest + place, mask=exists, other=float("-inf"))
        log_sum = tl.load(normalizer.log_sum + place, mask=exists, other=0.0)
        q = load_tokens(query, batch, head, row, exists & (is_bad == 0), blocks.head_dim, blocks.padded_head_dim)
        products = capped_products(q, k, terms, blocks.precision)
        allowed = allowed_cells(tiles, entry, row, column, sizes, is_partial)
        scores = hidden_scores(products, allowed, terms, batch, head, row, column, sizes, is_bad, is_bad_key)
        weights = tl.exp(log_weights(scores, largest, log_sum))
        weights = tl.where(allowed & (largest != largest)[:, None], float("nan"), weights)
        sums += tl.sum(weights, 0)
    return sums
