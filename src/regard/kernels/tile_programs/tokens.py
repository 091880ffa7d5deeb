"""Tokens with their flags and normalizers, in Triton: how the kernels of this folder load and store them.

Tokens with NaN or Inf are flagged (``token_flags``) and never loaded: zeros take their place, so that nothing
multiplies them.
"""

import triton
import triton.language as tl


@triton.jit
def load_tokens(tokens, batch, head, index, is_loaded, size: tl.constexpr, padded: tl.constexpr):
    """Load tokens (tokens, padded) of ``size`` numbers: zeros beyond them, and for tokens that are not loaded."""
    base = tokens.base + tl.cast(batch, tl.int64) * tokens.batch_stride + tl.cast(head, tl.int64) * tokens.head_stride
    column = tl.arange(0, padded)
    places = index.to(tl.int64)[:, None] * tokens.row_stride + column[None, :]
    if padded == size:
        return tl.load(base + places, mask=is_loaded[:, None], other=0.0)
    return tl.load(base + places, mask=is_loaded[:, None] & (column < size)[None, :], other=0.0)


@triton.jit
def store_tokens(tokens, batch, head, index, length, values, size: tl.constexpr, padded: tl.constexpr):
    """Store tokens (tokens, padded) with an index below ``length``."""
    base = tokens.base + tl.cast(batch, tl.int64) * tokens.batch_stride + tl.cast(head, tl.int64) * tokens.head_stride
    column = tl.arange(0, padded)
    places = index.to(tl.int64)[:, None] * tokens.row_stride + column[None, :]
    tl.store(base + places, values, mask=(index < length)[:, None] & (column < size)[None, :])


@triton.jit
def place_of(batch, head, heads, index, length):
    """Return the places of tokens in a contiguous array (batch, heads, length)."""
    return tl.cast(batch * heads + head, tl.int64) * length + index


@triton.jit
def load_queries(query, terms, batch, head, row, sizes, blocks: tl.constexpr):
    """Load some queries and their flags."""
    exists = row < sizes.queries
    is_bad = tl.load(terms.bad_query + place_of(batch, head, sizes.heads, row, sizes.queries), mask=exists, other=0)
    q = load_tokens(query, batch, head, row, exists & (is_bad == 0), blocks.head_dim, blocks.padded_head_dim)
    return q, is_bad


@triton.jit
def load_keys(key, terms, batch, key_head, column, sizes, blocks: tl.constexpr):
    """Load some keys and their flags."""
    place = place_of(batch, key_head, sizes.heads // sizes.group, column, sizes.keys)
    is_bad = tl.load(terms.bad_key + place, mask=column < sizes.keys, other=1)
    k = load_tokens(key, batch, key_head, column, is_bad == 0, blocks.head_dim, blocks.padded_head_dim)
    return k, is_bad


@triton.jit
def load_keys_and_values(key, value, terms, batch, key_head, column, sizes, blocks: tl.constexpr):
    """Load some keys, their values and flags."""
    k, is_bad = load_keys(key, terms, batch, key_head, column, sizes, blocks)
    v = load_tokens(value, batch, key_head, column, is_bad == 0, blocks.value_dim, blocks.padded_value_dim)
    return k, v, is_bad


@triton.jit
def load_normalizers(normalizer, batch, head, row, sizes):
    """Load the largest scores of some queries, and the logarithms of their sums."""
    place, exists = place_of(batch, head, sizes.heads, row, sizes.queries), row < sizes.queries
    largest = tl.load(normalizer.largest + place, mask=exists, other=float("-inf"))
    return largest, tl.load(normalizer.log_sum + place, mask=exists, other=0.0)
