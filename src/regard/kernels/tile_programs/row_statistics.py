"""Statistics of the weights of each query, in one more pass over the tiles of its row, in Triton.

    entropy_i = -sum_j w_ij ln w_ij        a sink is one more weight
    mean_i    = sum_j w_ij c_j             of a number for each key, where one is given
    top       the largest weights, largest first; equal ones by their keys

For the largest weights, a score and its key are packed into 64 bits, the score first, such that a larger number comes
earlier; all are different. A row keeps the ``count`` largest so far. Of each tile, those above the least of them take
its place one after another: few do after the first tiles. More than ``MAX_COUNT`` are found in several passes, each
among the numbers below the least of the pass before.
"""

import triton
import triton.language as tl

from regard.kernels.tile_programs.scores import allowed_cells, find_list, log_weights, score_cells, tile_at
from regard.kernels.tile_programs.tokens import load_keys, load_normalizers, load_queries, place_of

MAX_COUNT = 64
"""Largest weights that one pass finds."""
_LOWEST = tl.constexpr(-(2**63))
_ALL_BITS = tl.constexpr(0x7FFFFFFF)  # of a key, or of a score without its sign


@triton.jit
def summarize_rows(
    query,
    key,
    tiles,
    terms,
    normalizer,
    sink_weight,
    entropy,
    column,
    mean,
    top_keys,
    top_weights,
    top,
    sizes,
    count: tl.constexpr,
    blocks: tl.constexpr,
):
    """Compute ``entropy`` and ``mean`` (batch, heads, queries), and ``top_keys`` and ``top_weights`` (.., top).

    ``column`` is float32 (batch, heads, keys). ``entropy`` and ``mean`` may be None. ``count`` is a power of two, or 0
    for no largest weights.
    """
    parts = tl.cdiv(sizes.queries, blocks.rows)
    part, pair = tl.program_id(0) % parts, tl.program_id(0) // parts
    batch, head = pair // sizes.heads, pair % sizes.heads
    row = part * blocks.rows + tl.arange(0, blocks.rows)
    exists = row < sizes.queries
    place = place_of(batch, head, sizes.heads, row, sizes.queries)
    q, is_bad = load_queries(query, terms, batch, head, row, sizes, blocks)
    largest, log_sum = load_normalizers(normalizer, batch, head, row, sizes)
    bounds = find_list(tiles, batch, head, part * blocks.rows // 64, tl.cdiv(sizes.keys, 64))
    passes = 1
    if count > 0:
        passes = tl.cdiv(top, count)
    limit = tl.full([blocks.rows], 2**63 - 1, tl.int64)
    for turn in range(passes):
        sums = tl.full([blocks.rows], 0, tl.float32)
        means = tl.full([blocks.rows], 0, tl.float32)
        best = tl.full([blocks.rows, 1], 0, tl.int64)
        if count > 0:
            best = tl.full([blocks.rows, count], 0, tl.int64) + (tl.arange(0, count).to(tl.int64) + _LOWEST)[None, :]
        for is_partial in tl.static_range(2 if tiles is not None else 1):
            for entry in range(bounds[is_partial], bounds[is_partial + 1]):
                sums, means, best = _read_tile(
                    sums, means, best, limit, q, is_bad, largest, log_sum, key, column, tiles, terms, batch, head, row,
                    entry, sizes, entropy is not None, count, blocks, is_partial,
                )  # fmt: skip
        nan = tl.where(largest != largest, float("nan"), 0.0)
        if entropy is not None:
            if sink_weight is not None:
                share = tl.load(sink_weight + place, mask=exists, other=0.0)
                sums -= tl.where(share > 0, share * tl.log(share), 0.0)
            tl.store(entropy + place, sums + nan, mask=exists)
        if column is not None:
            tl.store(mean + place, means, mask=exists)
        if count > 0:
            limit = tl.min(best, 1)
            for rank in range(turn * count, tl.minimum(turn * count + count, top)):
                next_one = tl.max(best, 1)
                score, of_key = _unpack(next_one)
                weights = tl.where(score > float("-inf"), tl.exp((score - largest) - log_sum), 0.0) + nan
                tl.store(top_keys + place * top + rank, of_key, mask=exists)
                tl.store(top_weights + place * top + rank, weights, mask=exists)
                best = tl.where(best == next_one[:, None], _LOWEST, best)


@triton.jit
def _read_tile(
    sums,
    means,
    best,
    limit,
    q,
    is_bad_query,
    largest,
    log_sum,
    key,
    column_numbers,
    tiles,
    terms,
    batch,
    head,
    row,
    entry,
    sizes,
    has_entropy: tl.constexpr,
    count: tl.constexpr,
    blocks: tl.constexpr,
    is_partial: tl.constexpr,
):
    """Add the cells of a tile to the sums of some queries, and take its largest scores."""
    first = tile_at(tiles, entry) * 64
    for part in range(64 // blocks.columns):
        column = first + part * blocks.columns + tl.arange(0, blocks.columns)
        k, is_bad = load_keys(key, terms, batch, head // sizes.group, column, sizes, blocks)
        allowed = allowed_cells(tiles, entry, row, column, sizes, is_partial)
        _, scores = score_cells(q, is_bad_query, k, is_bad, allowed, terms, batch, head, row, column, sizes, blocks)
        logs = log_weights(scores, largest, log_sum)
        weights = tl.exp(logs)
        if has_entropy:
            sums -= tl.sum(tl.where(weights > 0, weights * logs, 0.0), 1)
        if column_numbers is not None:
            place = place_of(batch, head, sizes.heads, column, sizes.keys)
            numbers = tl.load(column_numbers + place, mask=column < sizes.keys, other=0.0)
            means += tl.sum(tl.where(weights > 0, weights * numbers[None, :], 0.0), 1)
        if count > 0:
            scores = tl.where(largest[:, None] == largest[:, None], scores, float("-inf"))
            best = _insert(best, _pack(scores, column), limit)
    return sums, means, best


@triton.jit
def _pack(scores, column):
    """Pack scores and their keys into numbers in the order of the scores; the lowest number for -infinity."""
    bits = tl.where(scores == 0, 0.0, scores).to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & _ALL_BITS)
    packed = (ordered.to(tl.int64) << 32) | (column ^ _ALL_BITS).to(tl.int64)[None, :]
    return tl.where(scores > float("-inf"), packed, _LOWEST)


@triton.jit
def _unpack(packed):
    """Return the scores, and the keys (int64): -infinity and -1 for places that no score took."""
    ordered = (packed >> 32).to(tl.int32)
    score = (ordered ^ ((ordered >> 31) & _ALL_BITS)).to(tl.float32, bitcast=True)
    is_taken = packed > _LOWEST + 2**31
    of_key = (packed & _ALL_BITS) ^ _ALL_BITS
    return tl.where(is_taken, score, float("-inf")), tl.where(is_taken, of_key, -1)


@triton.jit
def _insert(best, candidates, limit):
    """Replace the least of ``best`` (rows, count) by larger ``candidates`` (rows, columns) below ``limit``."""
    candidates = tl.where(candidates < limit[:, None], candidates, _LOWEST)
    minimum = tl.min(best, 1)
    next_one = tl.max(candidates, 1)
    while tl.max((next_one > minimum).to(tl.int32), 0) > 0:
        is_replaced = (best == minimum[:, None]) & (next_one > minimum)[:, None]
        best = tl.where(is_replaced, next_one[:, None], best)
        candidates = tl.where(candidates == next_one[:, None], _LOWEST, candidates)
        minimum = tl.min(best, 1)
        next_one = tl.max(candidates, 1)
    return best
