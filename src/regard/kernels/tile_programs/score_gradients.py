"""Gradients of the scores of cells, in Triton: what the kernels of gradients share.

    dw_ij = dO_i . v_j - dH_i ln w_ij + dReceived_j + dTop_ij
    ds_ij = w_ij (dw_ij - delta_i)            delta_i = sum_j w_ij dw_ij - dlse_i, over the keys and the sink

Dao 2023, section 3.1.2, has the first term. H_i is the entropy; the derivative of -w ln w is -(ln w + 1), and the 1 is
the same for all keys of a query, so it cancels. A sink's weight has such a term as well, which is in delta alone.
"""

import triton
import triton.language as tl

from regard.kernels.tile_programs.scores import log_weights, score_cells
from regard.kernels.tile_programs.tokens import load_normalizers, load_queries, load_tokens, place_of


@triton.jit
def load_rows(query, terms, normalizer, upstream, batch, head, row, sizes, blocks: tl.constexpr):
    """Load queries, the gradients of their outputs (0 in rows without weights), their flags and normalizers."""
    q, is_bad = load_queries(query, terms, batch, head, row, sizes, blocks)
    largest, log_sum = load_normalizers(normalizer, batch, head, row, sizes)
    of_output = tl.zeros([blocks.rows, blocks.padded_value_dim], q.dtype)
    if upstream.output is not None:
        has_weights = (row < sizes.queries) & (largest > float("-inf"))
        of_output = load_tokens(
            upstream.output, batch, head, row, has_weights, blocks.value_dim, blocks.padded_value_dim
        )
    return q, of_output, is_bad, largest, log_sum


@triton.jit
def differentiate_cells(
    q,
    of_output,
    is_bad_query,
    largest,
    log_sum,
    k,
    v,
    is_bad_key,
    allowed,
    terms,
    upstream,
    batch,
    head,
    row,
    column,
    sizes,
    blocks: tl.constexpr,
):
    """Compute the weights of cells, and the gradients of their scores and of their products, scaled and capped."""
    products, scores = score_cells(
        q, is_bad_query, k, is_bad_key, allowed, terms, batch, head, row, column, sizes, blocks
    )
    logs = log_weights(scores, largest, log_sum)
    weights = tl.exp(logs)
    exists = row < sizes.queries
    place = place_of(batch, head, sizes.heads, row, sizes.queries)
    gradients = -tl.load(upstream.delta + place, mask=exists, other=0.0)[:, None]
    if upstream.output is not None:
        gradients = gradients + tl.dot(of_output, tl.trans(v), input_precision=blocks.precision)
    if upstream.entropy is not None:
        gradients = gradients - tl.load(upstream.entropy + place, mask=exists, other=0.0)[:, None] * logs
    if upstream.received is not None:
        of_key = place_of(batch, head, sizes.heads, column, sizes.keys)
        gradients = gradients + tl.load(upstream.received + of_key, mask=column < sizes.keys, other=0.0)[None, :]
    if upstream.top_weights is not None:
        for rank in range(upstream.top):
            top_key = tl.load(upstream.top_keys + place * upstream.top + rank, mask=exists, other=-1)
            of_top = tl.load(upstream.top_weights + place * upstream.top + rank, mask=exists, other=0.0)
            gradients = gradients + tl.where(top_key[:, None] == column[None, :], of_top[:, None], 0.0)
    of_scores = tl.where(weights > 0, weights * gradients, 0.0)
    of_products = of_scores
    if terms.softcap is not None:
        share = products / terms.softcap
        of_products = tl.where(weights > 0, of_scores * (1.0 - share * share), 0.0)
    return weights, of_scores, of_products


@triton.jit
def cells_of_code(tiles, codes, batch, head, row, column, query_tile, key_tile, sizes):
    """Return which cells of a tile are allowed, by its code: -2 empty, -1 full, else the number of its bitmap.

    ``codes`` is (groups, query_tiles, key_tiles); without a mask it is None, and all tiles are full.
    """
    exists = (row < sizes.queries)[:, None] & (column < sizes.keys)[None, :]
    if codes is not None:
        group = batch * tiles.batch_stride + head * tiles.head_stride
        key_tiles = tl.cdiv(sizes.keys, 64)
        code = tl.load(codes + tl.cast(group * tiles.lists + query_tile, tl.int64) * key_tiles + key_tile)
        if code == -2:
            exists = exists & False
        if code >= 0:
            words = tl.load(tiles.bitmaps + tl.cast(code, tl.int64) * 64 + row % 64)
            exists = exists & (((words[:, None] >> (column % 64).to(tl.int64)[None, :]) & 1) != 0)
    return exists
