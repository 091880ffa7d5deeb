"""The weight that each key received, summed over the queries, in a pass over the columns of a tile map, in Triton.

    received_j = sum_i w_ij

A program computes ``blocks.columns`` keys of one query head, and adds its queries in the order of the map: no atomic
additions, so bits repeat. A key is NaN if a row of NaN may see it.
"""

import triton
import triton.language as tl

from regard.kernels.tile_programs.scores import allowed_cells, find_list, log_weights, score_cells, tile_at
from regard.kernels.tile_programs.tokens import load_keys, load_normalizers, load_queries, place_of


@triton.jit
def sum_columns(query, key, tiles, terms, normalizer, received, sizes, blocks: tl.constexpr):
    """Compute ``received`` (batch, heads, keys), float32; ``tiles`` are those of columns."""
    parts = tl.cdiv(sizes.keys, blocks.columns)
    part, pair = tl.program_id(0) % parts, tl.program_id(0) // parts
    batch, head = pair // sizes.heads, pair % sizes.heads
    column = part * blocks.columns + tl.arange(0, blocks.columns)
    exists = column < sizes.keys
    k, is_bad = load_keys(key, terms, batch, head // sizes.group, column, sizes, blocks)
    sums = tl.full([blocks.columns], 0, tl.float32)
    bounds = find_list(tiles, batch, head, part * blocks.columns // 64, tl.cdiv(sizes.queries, 64))
    for is_partial in tl.static_range(2 if tiles is not None else 1):
        for entry in range(bounds[is_partial], bounds[is_partial + 1]):
            sums = _add_tile(
                sums, k, is_bad, query, tiles, terms, normalizer, batch, head, column, entry, sizes, blocks, is_partial
            )
    tl.store(received + place_of(batch, head, sizes.heads, column, sizes.keys), sums, mask=exists)


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
    for part in range(64 // blocks.rows):
        row = first + part * blocks.rows + tl.arange(0, blocks.rows)
        q, is_bad = load_queries(query, terms, batch, head, row, sizes, blocks)
        largest, log_sum = load_normalizers(normalizer, batch, head, row, sizes)
        allowed = allowed_cells(tiles, entry, row, column, sizes, is_partial)
        _, scores = score_cells(q, is_bad, k, is_bad_key, allowed, terms, batch, head, row, column, sizes, blocks)
        weights = tl.exp(log_weights(scores, largest, log_sum))
        weights = tl.where(allowed & (largest != largest)[:, None], float("nan"), weights)
        sums += tl.sum(weights, 0)
    return sums
