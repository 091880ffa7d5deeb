"""Gradients of the scores of cells, in Triton: what the kernels of gradients share.

    dw_ij = dO_i . v_j - dH_i ln w_ij + dReceived_j + dTop_ij + dRows_ij
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
    of_output = tl.full([blocks.rows, blocks.padded_value_dim], 0, q.dtype)
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
    if upstream.rows is not None:
        row_place = tl.load(upstream.row_places + row, mask=exists, other=-1)
        if tl.max(row_place, 0) >= 0:
            gradients = gradients + _load_gradients_of_rows(upstream.rows, row_place, batch, head, column, sizes)
    of_scores = tl.where(weights > 0, weights * gradients, 0.0)
    of_products = of_scores
    if terms.softcap is not None:
        share = products / terms.softcap
        of_products = tl.where(weights > 0, of_scores * (1.0 - share * share), 0.0)
    return weights, of_scores, of_products


@triton.jit
def _load_gradients_of_rows(of_rows, place, batch, head, column, sizes):
    """Load the gradients of the weights (rows, columns) of asked rows, by their place among them; 0 in other rows."""
    base = (
        of_rows.base + tl.cast(batch, tl.int64) * of_rows.batch_stride + tl.cast(head, tl.int64) * of_rows.head_stride
    )
    is_asked = (place >= 0)[:, None] & (column < sizes.keys)[None, :]
    return tl.load(base + place.to(tl.int64)[:, None] * of_rows.row_stride + column[None, :], mask=is_asked, other=0.0)
