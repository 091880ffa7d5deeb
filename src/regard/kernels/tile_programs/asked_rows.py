"""The weights of some queries over all keys, in Triton: no cells of other queries are computed.

    w_ij = exp((s_ij - m_i) - ln l_i)           m, l: see ``forward``

A program computes ``blocks.rows`` of the asked queries, which may come from different tiles, be in any order and
repeat, and ``blocks.columns`` keys. The weights of the allowed keys of a row of NaN are NaN.
"""

import triton
import triton.language as tl

from regard.kernels.tile_programs.scores import cells_of_codes, log_weights, score_cells
from regard.kernels.tile_programs.tokens import load_keys, load_normalizers, load_queries


@triton.jit
def weigh_rows(query, key, tiles, codes, terms, normalizer, rows, count, weights, sizes, blocks: tl.constexpr):
    """Compute ``weights`` (batch, heads, count, keys), float32, of the queries ``rows`` (count,).

    ``codes`` (groups, count, key_tiles) are those of the tiles in each asked row, None without a mask.
    """
    parts, key_parts = tl.cdiv(count, blocks.rows), tl.cdiv(sizes.keys, blocks.columns)
    part, rest = tl.program_id(0) % parts, tl.program_id(0) // parts
    key_part, pair = rest % key_parts, rest // key_parts
    batch, head = pair // sizes.heads, pair % sizes.heads
    place = part * blocks.rows + tl.arange(0, blocks.rows)
    row = tl.load(rows + place, mask=place < count, other=sizes.queries).to(tl.int32)
    column = key_part * blocks.columns + tl.arange(0, blocks.columns)
    q, is_bad_query = load_queries(query, terms, batch, head, row, sizes, blocks)
    largest, log_sum = load_normalizers(normalizer, batch, head, row, sizes)
    k, is_bad_key = load_keys(key, terms, batch, head // sizes.group, column, sizes, blocks)
    key_tile = key_part * blocks.columns // 64
    allowed = cells_of_codes(tiles, codes, batch, head, place, count, row, column, key_tile, sizes)
    _, scores = score_cells(q, is_bad_query, k, is_bad_key, allowed, terms, batch, head, row, column, sizes, blocks)
    of_cells = tl.exp(log_weights(scores, largest, log_sum))
    of_cells = tl.where(allowed & (largest != largest)[:, None], float("nan"), of_cells)
    places = (tl.cast(pair, tl.int64) * count + place)[:, None] * sizes.keys + column[None, :]
    tl.store(weights + places, of_cells, mask=(place < count)[:, None] & (column < sizes.keys)[None, :])
