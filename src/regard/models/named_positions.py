"""The positions of a Transformer by the names in its config: those of the embeddings, and those inside attention."""

from __future__ import annotations

from regard.positions import ALiBi, Learned, Rotary, ShawRelative, Sinusoidal, T5Buckets
from regard.positions.base import AbsolutePosition, PairBias, Rotation

ABSOLUTE_POSITIONS = ("sinusoidal", "learned")
"""Positions that are added to embeddings."""
HEAD_POSITIONS = ("rotary", "alibi", "t5", "shaw")
"""Positions in the heads of self-attention: rotations or biases."""
POSITIONS = (*ABSOLUTE_POSITIONS, *HEAD_POSITIONS, "none")


def make_absolute_position(name: str, *, width: int, max_length: int) -> AbsolutePosition | None:
    """Build the position that is added to embeddings; None for any other name of ``POSITIONS``."""
    if name == "sinusoidal":
        return Sinusoidal(width)
    return Learned(max_length, width) if name == "learned" else None


def make_head_position(
    name: str, *, width: int, heads: int, bidirectional: bool, parts: int = 1
) -> Rotation | PairBias | None:
    """Build the position of one layer's self-attention; None for any other name of ``POSITIONS``.

    ``parts`` is the number of parts of a head that are rotated each (``Traits.score_parts``).
    """
    if name == "rotary":
        return Rotary(width // heads // parts)
    if name == "alibi":
        return ALiBi(heads)
    if name == "shaw":
        return ShawRelative(width // heads)
    return T5Buckets(heads, bidirectional=bidirectional) if name == "t5" else None
