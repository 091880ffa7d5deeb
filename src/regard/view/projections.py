"""How a layer computes its queries and keys from the vectors that it reads: the step before the steps of a head.

    q_i = f (W_q x_i + b),  k_j = W_k x_j + b,  then each may be normalised, and rotated by its position

A page has the vectors x of all tokens, and of each head one row of W_q and one of W_k: those of the component c with
the largest mean of |q_c|, or |k_c|. So the reader can compute one number of each query and key; whole matrices would
be larger than everything else on the page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float32, Int

from regard.fields import repr_of_fields
from regard.view.pack import Json, pack_fixed

MAX_BYTES = 1_000_000
"""Size of the projections of a page, at most; beyond that it leaves them out."""
LETTERS = 2
"""Letters for each number: a sum of products is off by some 0.001 of the largest number of a query."""


@final
@dataclass(frozen=True, eq=False)
class Projection:
    """The projection of tokens (tokens, width) to one component of each head, before any rotation.

    ``components`` are their numbers, ``rows`` (heads, width) the rows of the matrix, ``biases`` what is added.
    ``factor`` multiplies the sum; ``is_rounded`` says that the layer rounds tokens and weights to few bits. ``normed``
    (heads, tokens) are the numbers after a norm of the layer, if it has one; ``is_rotated`` says that the layer then
    rotates all of them by position.
    """

    __repr__ = repr_of_fields

    tokens: Float32[np.ndarray, "_tokens _width"]
    components: Int[np.ndarray, " _heads"]
    rows: Float32[np.ndarray, "_heads _width"]
    biases: Float32[np.ndarray, " _heads"]
    is_rotated: bool
    normed: Float32[np.ndarray, "_heads _tokens"] | None = None
    factor: float = 1.0
    is_rounded: bool = False

    @property
    def size(self) -> int:
        """Number of values that a page stores beside the tokens."""
        return self.rows.size + (0 if self.normed is None else self.normed.size)


@final
@dataclass(frozen=True, eq=False)
class Projections:
    """The projections of the queries and of the keys of one layer."""

    __repr__ = repr_of_fields

    query: Projection
    key: Projection

    @property
    def size(self) -> int:
        """Number of values that a page stores."""
        sides = [self.query] if self.key.tokens is self.query.tokens else [self.query, self.key]
        return sum(side.tokens.size for side in sides) + self.query.size + self.key.size

    def pack(self) -> Json:
        """Encode both sides; tokens that are read by both stand there once."""
        shared = self.key.tokens is self.query.tokens
        return {
            "width": self.query.tokens.shape[1],
            "query": _pack(self.query),
            "key": _pack_rows(self.key) if shared else _pack(self.key),
        }


def _pack(side: Projection) -> Json:
    return {"tokens": pack_fixed(side.tokens, LETTERS)} | _pack_rows(side)


def _pack_rows(side: Projection) -> Json:
    return {
        "rows": pack_fixed(side.rows, LETTERS),
        "components": side.components.tolist(),
        "biases": [float(f"{bias:.7g}") for bias in side.biases.tolist()],
        "rotated": side.is_rotated,
        "factor": side.factor,
        "rounded": side.is_rounded,
        "normed": None if side.normed is None else pack_fixed(side.normed, LETTERS),
    }
