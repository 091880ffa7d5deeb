"""Scores and weights of cells, in Triton: what the kernels of this folder share.

    s_ij = scale * q_i . k_j                               or softcap * tanh(scale * q_i . k_j / softcap)
         + bias_ij                                         of a tensor, or of a table by the distance j - i
    s_ij = +infinity   if token j is not finite, or s_ij is NaN
    s_ij = -infinity   if the mask forbids the cell

Tokens with NaN or Inf are never multiplied (``tokens``). The +infinity in their cells makes the sum of a row that may
see them NaN, as an overflow does, and no other row (``forward``).

A tile of the map has 64 x 64 cells. A kernel computes it in parts of (rows, columns) cells, powers of two
from 16 to 64. ``blocks`` are constants (``kernel_arguments.Blocks``), and an absent part of other arguments is None.
"""

import triton
import triton.language as tl


@triton.jit
def find_list(tiles, batch, head, index, count):
    """Find the bounds of the tiles of a row or column: full ones are bounds[0] <= entry < bounds[1], partial ones the
    next, bounds[1] <= entry < bounds[2].

    Without a mask all ``count`` tiles are full, and kernels have no code for partial ones.
    """
    begin, middle, end = 0, count, count
    if tiles is not None:
        place = (batch * tiles.batch_stride + head * tiles.head_stride) * tiles.lists + index
        begin = tl.load(tiles.bounds + place * 3)
        middle = tl.load(tiles.bounds + place * 3 + 1)
        end = tl.load(tiles.bounds + place * 3 + 2)
    return begin, middle, end


@triton.jit
def tile_at(tiles, entry):
    """Return the number of a tile in its row or column."""
    if tiles is None:
        return entry
    return tl.load(tiles.tile + entry)


@triton.jit
def allowed_cells(tiles, entry, query, key, sizes, is_partial: tl.constexpr):
    """Return which cells (rows, columns) of a tile exist, and in a partial one are set in its bitmap."""
    exists = (query < sizes.queries)[:, None] & (key < sizes.keys)[None, :]
    if is_partial:
        bitmap = tl.load(tiles.bitmap + entry).to(tl.int64)
        words = tl.load(tiles.bitmaps + bitmap * 64 + query % 64)
        exists = exists & (((words[:, None] >> (key % 64).to(tl.int64)[None, :]) & 1) != 0)
    return exists


@triton.jit
def cells_of_codes(tiles, codes, batch, head, line, lines, row, column, key_tile, sizes):
    """Return which cells (rows, columns) of tiles are allowed, each row's by the code of its tile.

    A code is -2 in an empty tile, -1 in a full one, else the number of a bitmap. ``codes`` is (groups, lines,
    key_tiles), and ``line`` is that of each row; without a mask it is None, and all tiles are full.
    """
    exists = (row < sizes.queries)[:, None] & (column < sizes.keys)[None, :]
    if codes is not None:
        group = batch * tiles.batch_stride + head * tiles.head_stride
        place = (tl.cast(group, tl.int64) * lines + line) * tl.cdiv(sizes.keys, 64) + key_tile
        code = tl.load(codes + place, mask=row < sizes.queries, other=-2)
        words = tl.load(tiles.bitmaps + code.to(tl.int64) * 64 + row % 64, mask=code >= 0, other=-1)
        words = tl.where(code == -2, 0, words)
        exists = exists & (((words[:, None] >> (column % 64).to(tl.int64)[None, :]) & 1) != 0)
    return exists


@triton.jit
def tanh(number):
    """Compute tanh: by its series near 0, where 1 - exp(-2x) loses digits."""
    size = tl.abs(number)
    power = tl.exp(-2.0 * size)
    far = (1.0 - power) / (1.0 + power)
    square = number * number
    series = -17.0 / 315 + square * (62.0 / 2835 - square * (1382.0 / 155925))
    near = number + number * square * (-1.0 / 3 + square * (2.0 / 15 + square * series))
    return tl.where(size < 0.25, near, tl.where(number < 0, -far, far))


@triton.jit
def capped_products(q, k, terms, blocks: tl.constexpr):
    """Compute the scaled products of queries and keys (rows, columns), bounded by a softcap."""
    products = tl.dot(q, tl.trans(k), input_precision=blocks.precision) * terms.scale
    if terms.softcap is not None:
        products = terms.softcap * tanh(products / terms.softcap)
    return products


@triton.jit
def load_bias(terms, batch, head, query, key, sizes, is_bad_query):
    """Load the bias of cells; 0 for queries that are not finite, whose rows become NaN whatever their bias."""
    exists = ((query < sizes.queries) & (is_bad_query == 0))[:, None] & (key < sizes.keys)[None, :]
    bias = tl.full([1, 1], 0, tl.float32)
    if terms.bias is not None:
        tensor = terms.bias
        base = (
            tensor.base + tl.cast(batch, tl.int64) * tensor.batch_stride + tl.cast(head, tl.int64) * tensor.head_stride
        )
        of_query = tl.cast(query, tl.int64)[:, None] * tensor.query_stride
        of_key = tl.cast(key, tl.int64)[None, :] * tensor.key_stride
        bias = tl.load(base + of_query + of_key, mask=exists, other=0.0).to(tl.float32)
    if terms.table is not None:
        distance = key[None, :] - query[:, None] + terms.table.shift
        base = terms.table.base + head * terms.table.head_stride
        bias = tl.load(base + distance, mask=exists, other=0.0)
    return bias


@triton.jit
def hidden_scores(products, allowed, terms, batch, head, query, key, sizes, is_bad_query, is_bad_key):
    """Add the bias to products and hide forbidden cells: the scores of the head of this file."""
    scores = products
    if (terms.bias is not None) or (terms.table is not None):
        scores = scores + load_bias(terms, batch, head, query, key, sizes, is_bad_query)
    scores = tl.where((is_bad_key != 0)[None, :] | (scores != scores), float("inf"), scores)
    return tl.where(allowed, scores, float("-inf"))


@triton.jit
def score_cells(q, is_bad_query, k, is_bad_key, allowed, terms, batch, head, row, column, sizes, blocks: tl.constexpr):
    """Compute the products of cells, scaled and capped, and their scores."""
    products = capped_products(q, k, terms, blocks)
    return products, hidden_scores(products, allowed, terms, batch, head, row, column, sizes, is_bad_query, is_bad_key)


@triton.jit
def log_weights(scores, largest, log_sum):
    """Compute the logarithms of weights (rows, columns): -infinity where there is none, also in rows of NaN."""
    is_row = (largest > float("-inf"))[:, None] & (scores > float("-inf"))
    return tl.where(is_row, (scores - largest[:, None]) - log_sum[:, None], float("-inf"))
