"""The gradient of a bias, in Triton: of a tensor, or of a table by distance.

A program computes some cells of the tensor, or some distances of the table, and sums the gradients of all scores to
which they were added, in one order: no atomic additions, so bits repeat. It asks for the tiles of a mask by their place
(``cells_of_codes``).
"""

import triton
import triton.language as tl

from regard.kernels.tile_programs.score_gradients import differentiate_cells, load_rows
from regard.kernels.tile_programs.scores import cells_of_codes
from regard.kernels.tile_programs.tokens import load_keys_and_values


@triton.jit
def differentiate_bias(
    query, key, value, tiles, codes, terms, normalizer, upstream, of_bias, shape, batches, sizes, blocks: tl.constexpr
):
    """Compute ``of_bias``, float32 and contiguous, of the ``shape`` (batch or 1, heads or 1, queries or 1, keys or 1).

    A program computes a part of its last two dimensions, and adds up those that it was broadcast along.
    """
    query_parts, key_parts = tl.cdiv(shape[2], blocks.rows), tl.cdiv(shape[3], blocks.columns)
    key_part, rest = tl.program_id(0) % key_parts, tl.program_id(0) // key_parts
    query_part, pair = rest % query_parts, rest // query_parts
    batch, stop_batch = _range_of(pair // shape[1], shape[0], batches)
    head, stop_head = _range_of(pair % shape[1], shape[1], sizes.heads)
    first_row, stop_row = _range_of(query_part, shape[2], tl.cdiv(sizes.queries, blocks.rows))
    first_column, stop_column = _range_of(key_part, shape[3], tl.cdiv(sizes.keys, blocks.columns))
    summed = tl.full([blocks.rows, blocks.columns], 0, tl.float32)
    for at_batch in range(batch, stop_batch):
        for at_head in range(head, stop_head):
            for at_row in range(first_row, stop_row):
                for at_column in range(first_column, stop_column):
                    summed += _score_gradients(
                        query, key, value, tiles, codes, terms, normalizer, upstream, at_batch, at_head, at_row,
                        at_column, sizes, blocks,
                    )  # fmt: skip
    row = query_part * blocks.rows + tl.arange(0, blocks.rows)
    column = key_part * blocks.columns + tl.arange(0, blocks.columns)
    if shape[2] == 1:
        summed = tl.where((row == 0)[:, None], tl.sum(summed, 0)[None, :], 0.0)
    if shape[3] == 1:
        summed = tl.where((column == 0)[None, :], tl.sum(summed, 1)[:, None], 0.0)
    places = (tl.cast(pair, tl.int64) * shape[2] + row)[:, None] * shape[3] + column[None, :]
    tl.store(of_bias + places, summed, mask=(row < shape[2])[:, None] & (column < shape[3])[None, :])


@triton.jit
def differentiate_table(
    query, key, value, tiles, codes, terms, normalizer, upstream, diagonals, heads, batches, sizes, blocks: tl.constexpr
):
    """Sum the gradients of scores along diagonals: ``diagonals`` (heads or 1, query_parts + key_parts - 1, 2 side).

    Blocks are square, of ``side`` rows. Number d of a diagonal of blocks has those whose key part minus query part is
    d - query_parts + 1; in it, place t has the cells whose key minus query is that number of sides, plus t - side + 1.
    """
    query_parts, key_parts = tl.cdiv(sizes.queries, blocks.rows), tl.cdiv(sizes.keys, blocks.columns)
    count = query_parts + key_parts - 1
    number, table_head = tl.program_id(0) % count, tl.program_id(0) // count
    apart = number - query_parts + 1
    head, stop_head = _range_of(table_head, heads, sizes.heads)
    row, place = tl.arange(0, blocks.rows), tl.arange(0, 2 * blocks.columns)
    source = place[None, :] + row[:, None] - (blocks.rows - 1)
    is_cell = (source >= 0) & (source < blocks.columns)
    source = tl.where(is_cell, source, 0)
    summed = tl.full([2 * blocks.columns], 0, tl.float32)
    for at_batch in range(batches):
        for at_head in range(head, stop_head):
            for at_row in range(tl.maximum(0, -apart), tl.minimum(query_parts, key_parts - apart)):
                gradients = _score_gradients(
                    query, key, value, tiles, codes, terms, normalizer, upstream, at_batch, at_head, at_row,
                    at_row + apart, sizes, blocks,
                )  # fmt: skip
                summed += tl.sum(tl.where(is_cell, tl.gather(gradients, source, 1), 0.0), 0)
    tl.store(diagonals + tl.cast(tl.program_id(0), tl.int64) * 2 * blocks.columns + place, summed)


@triton.jit
def _range_of(index, size, length):
    """Return the range of indices that number ``index`` of a dimension stands for: all of them if its size is 1."""
    return tl.where(size == 1, 0, index), tl.where(size == 1, length, index + 1)


@triton.jit
def _score_gradients(
    query,
    key,
    value,
    tiles,
    codes,
    terms,
    normalizer,
    upstream,
    batch,
    head,
    query_part,
    key_part,
    sizes,
    blocks: tl.constexpr,
):
    """Compute the gradients of the scores of a block of cells."""
    row = query_part * blocks.rows + tl.arange(0, blocks.rows)
    column = key_part * blocks.columns + tl.arange(0, blocks.columns)
    key_tile, query_tiles = key_part * blocks.columns // 64, tl.cdiv(sizes.queries, 64)
    allowed = cells_of_codes(tiles, codes, batch, head, row // 64, query_tiles, row, column, key_tile, sizes)
    q, of_output, is_bad_query, largest, log_sum = load_rows(
        query, terms, normalizer, upstream, batch, head, row, sizes, blocks
    )
    k, v, is_bad_key = load_keys_and_values(key, value, terms, batch, head // sizes.group, column, sizes, blocks)
    _, of_scores, _ = differentiate_cells(
        q, of_output, is_bad_query, largest, log_sum, k, v, is_bad_key, allowed, terms, upstream, batch, head, row,
        column, sizes, blocks,
    )  # fmt: skip
    return of_scores
