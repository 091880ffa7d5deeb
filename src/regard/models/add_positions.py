"""Positions that are added to embeddings, the same for all texts or those of each token.

    without positions    tokens + P[0 .. length - 1]
    with positions       tokens + P[positions]          for texts padded on the left, or packed behind one another

tokens (batch, length, width), positions (batch, length) -> (batch, length, width).
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from regard.models.check_token_ids import check_token_positions
from regard.positions.base import MAX_POSITION, AbsolutePosition


def add_positions(
    tokens: Float[Tensor, "batch length width"],
    encoding: AbsolutePosition | None,
    positions: Tensor | None,
    *,
    offset: int = 0,
) -> Float[Tensor, "batch length width"]:
    """Add the vectors of the positions of tokens; nothing where ``encoding`` is None, as positions are in the heads.

    Without ``positions`` the first token is at ``offset``. Raises DtypeError, ShapeError or OptionError for
    ``positions`` that do not fit.
    """
    if positions is not None:
        limit = None if encoding is None else encoding.max_length
        check_token_positions(positions, tokens, MAX_POSITION if limit is None else limit)
    if encoding is None:
        return tokens
    if positions is None:
        return tokens + encoding(tokens.shape[1], offset=offset)
    return tokens + encoding.at(positions)
