"""Flags of tokens that contain NaN or Inf, in one pass over them, in Triton.

A key is flagged if it or its value is not finite: both are then hidden together, as ``reference.nonfinite_isolation``
does.
"""

import triton
import triton.language as tl

from regard.kernels.tile_programs.tokens import load_tokens


@triton.jit
def flag_tokens(first, second, flags, heads, length, blocks: tl.constexpr):
    """Write 1 to ``flags`` (batch, heads, length) where a token of ``first``, or of ``second``, is not finite."""
    parts = tl.cdiv(length, blocks.rows)
    part, pair = tl.program_id(0) % parts, tl.program_id(0) // parts
    batch, head = pair // heads, pair % heads
    index = part * blocks.rows + tl.arange(0, blocks.rows)
    exists = index < length
    tokens = load_tokens(first, batch, head, index, exists, blocks.head_dim, blocks.padded_head_dim)
    is_bad = tl.max(_is_not_finite(tokens), 1)
    if second is not None:
        tokens = load_tokens(second, batch, head, index, exists, blocks.value_dim, blocks.padded_value_dim)
        is_bad = is_bad | tl.max(_is_not_finite(tokens), 1)
    tl.store(flags + tl.cast(pair, tl.int64) * length + index, is_bad.to(tl.uint8), mask=exists)


@triton.jit
def _is_not_finite(tokens):
    """Return 1 where a number is NaN or infinite, else 0."""
    return (~(tl.abs(tokens.to(tl.float32)) < float("inf"))).to(tl.int32)
