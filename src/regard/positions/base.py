"""Abstract classes of the three kinds of positional encoding.

AbsolutePosition   a vector added to each token's embedding
Rotation           a rotation of queries and keys, so that their dot product depends on distance
PairBias           a term added to the score of each (query, key) pair; DistanceBias if it depends on distance only,
                   DenseBias if it depends on both positions, but not on the queries
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.contract import Frame, check_length
from regard.errors import ShapeError


class AbsolutePosition(nn.Module, ABC):
    """Vectors of shape (length, width) to add to embeddings."""

    @abstractmethod
    def forward(self, length: int, *, offset: int = 0) -> Float[Tensor, "length width"]:
        """Return the vectors of positions ``offset`` to ``offset + length - 1``."""

    @abstractmethod
    def at(self, positions: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length width"]:
        """Return the vectors of the position of each token, 0 to ``max_length - 1``."""

    @property
    def max_length(self) -> int | None:
        """The number of positions; None is no limit."""
        return None


class Rotation(nn.Module, ABC):
    """Rotation of each query and key by its position."""

    @abstractmethod
    def forward(
        self, tensor: Float[Tensor, "*batch length head_dim"], *, offset: int = 0
    ) -> Float[Tensor, "*batch length head_dim"]:
        """Rotate tokens at positions ``offset`` to ``offset + length - 1``."""

    @property
    def depends_on_length(self) -> bool:
        """Whether the rotation at a position also depends on the length of the text; True if that is not known."""
        return True

    @property
    def switch_length(self) -> int | None:
        """The length of texts beyond which every position is rotated otherwise; None if there is no such length."""
        return None

    def factors(
        self, like: Tensor, head_dim: int, offset: int, length: int
    ) -> tuple[Float[Tensor, "length rotated"], Float[Tensor, "length rotated"], bool] | None:
        """Return by what a kernel rotates heads at positions ``offset`` to ``offset + length - 1``; None: it cannot.

        Element i of the first ``rotated`` becomes itself times the first factor, plus the other element of its pair
        times the second, in the dtype of ``like``. True if pairs are neighbours, False if they are rotated / 2 apart.
        """
        del like, head_dim, offset, length
        return None

    def factors_at(
        self, like: Tensor, head_dim: int, positions: Int[Tensor, " tokens"]
    ) -> tuple[Float[Tensor, "tokens rotated"], Float[Tensor, "tokens rotated"], bool] | None:
        """Return the same for tokens at any ``positions``; None if a kernel cannot rotate them."""
        del like, head_dim, positions
        return None

    def rotate_at(
        self, tensor: Float[Tensor, "*batch length head_dim"], positions: Int[Tensor, " length"]
    ) -> Float[Tensor, "*batch length head_dim"]:
        """Rotate tokens at any ``positions``, by default one after the other."""
        if len(positions) == 0:  # ``split`` would return one part, without tokens
            return tensor
        parts = zip(tensor.split(1, dim=-2), positions.tolist(), strict=True)
        return torch.cat([self(part, offset=position) for part, position in parts], dim=-2)


@final
class DistanceTerms(NamedTuple):
    """The terms of a bias by the distance from query to key; None adds nothing.

    table   (heads, queries + keys - 1)     added to scores, for the distances 1 - keys .. queries - 1
    keys    (heads or 1, 2 m + 1, head_dim) vectors added to keys, for the distances -m .. m; others are clipped
    values  (2 m + 1, value_dim)            vectors added to values
    """

    table: Float[Tensor, "heads distances"] | None = None
    keys: Float[Tensor, "heads_or_one clipped head_dim"] | None = None
    values: Float[Tensor, "clipped value_dim"] | None = None


class PairBias(nn.Module, ABC):
    """A term added to the score of each (query, key) pair, and optionally a term added to the output."""

    def check(self, query: Tensor, value: Tensor) -> None:
        """Raise ShapeError unless the bias fits a query (batch, heads, queries, head_dim) and a value (.., value_dim).

        A value_dim of 0 requests no output, and is not checked.
        """
        del query, value

    @abstractmethod
    def scores(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        frame: Frame,
        rows: Int[Tensor, " rows"],
        scale: float,
    ) -> Float[Tensor, "#batch #heads rows keys"]:
        """Compute the term to add to the scaled scores of the queries ``rows`` (indices) of ``frame``."""

    def values(
        self, weights: Float[Tensor, "batch heads rows keys"], frame: Frame, rows: Int[Tensor, " rows"]
    ) -> Float[Tensor, "batch heads rows value_dim"] | None:
        """Compute the term to add to the output from the weights; None if there is no such term."""
        del weights, frame, rows
        return None

    def distance_terms(self, heads: int, queries: int, keys: int, scale: float) -> DistanceTerms | None:
        """Return the terms by distance for so many ``heads``, queries and keys; None if others are needed."""
        del heads, queries, keys, scale
        return None


class DistanceBias(PairBias):
    """A PairBias that depends on ``key - position(query)`` only: one table per head, linear in length."""

    heads: int

    def check(self, query: Tensor, value: Tensor) -> None:
        """Raise ShapeError unless the bias has the query's number of heads, or one head for all."""
        del value
        _check_heads(self, self.heads, query)

    @abstractmethod
    def table(self, lowest: int, highest: int) -> Float[Tensor, "heads distances"]:
        """Return the bias of each distance from ``lowest`` to ``highest``, inclusive; any device and float dtype."""

    def distance_terms(self, heads: int, queries: int, keys: int, scale: float) -> DistanceTerms:
        """Return the table for each head."""
        del scale
        return DistanceTerms(self.table(1 - keys, queries - 1).expand(heads, -1))

    def scores(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        frame: Frame,
        rows: Int[Tensor, " rows"],
        scale: float,
    ) -> Float[Tensor, "1 #heads rows keys"]:
        """Compute the scores (1, heads or 1, rows, keys) by shifting the table for each query."""
        del scale
        lowest, highest = distance_range(frame)
        table = self.table(lowest, highest).to(query)
        # Each query's row is a slice of the table. The gradient of slices is summed in a fixed order; indexing every
        # pair would sum it by atomic additions, in the order in which threads arrive.
        first_distance = -frame.query_positions(rows.to(query.device))
        if torch.compiler.is_compiling() and not torch.is_grad_enabled():  # torch.export has no slices of symbolic size
            keys = torch.arange(frame.keys, device=query.device)
            return table[:, (first_distance - lowest)[:, None] + keys][None]
        return table.unfold(1, frame.keys, 1).index_select(1, first_distance - lowest)[None]


class DenseBias(PairBias):
    """A PairBias that depends on the positions of query and key, one tensor for each pair of lengths.

    For short sequences, such as windows of a picture: ``regard.attention`` computes the tensor once for all batch
    entries, and every implementation and mechanism that takes a tensor as a bias takes it.
    """

    heads: int

    def check(self, query: Tensor, value: Tensor) -> None:
        """Raise ShapeError unless the bias has the query's number of heads, or one head for all."""
        del value
        _check_heads(self, self.heads, query)

    @abstractmethod
    def dense(self, frame: Frame) -> Float[Tensor, "1 heads queries keys"]:
        """Return the bias of each pair, in the dtype and on the device of the bias.

        Raises ShapeError for lengths that the bias was not made for.
        """

    def scores(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        frame: Frame,
        rows: Int[Tensor, " rows"],
        scale: float,
    ) -> Float[Tensor, "1 #heads rows keys"]:
        """Select the rows of the dense bias."""
        del scale
        return self.dense(frame).index_select(2, rows.to(query.device)).to(query)


def _check_heads(bias: PairBias, heads: int, query: Tensor) -> None:
    """Raise ShapeError unless ``heads`` are the query's number of heads, or one head for all."""
    if heads != 1 and heads != query.shape[1]:
        raise ShapeError(
            f"bias {type(bias).__name__} was made for another number of heads",
            expected=f"{query.shape[1]} heads, as the query has",
            got=f"{heads} heads",
            do="build it with the query's number of heads",
        )


MAX_POSITION = 2**53
"""The largest position: up to here positions are exact in float64, in which angles are computed."""


def check_positions(length: object, offset: object) -> None:
    """Raise OptionError unless ``length`` and the position ``offset`` of the first token are valid."""
    check_length("length", length)
    check_length("offset", offset, minimum=-MAX_POSITION, maximum=MAX_POSITION)


def distance_range(frame: Frame) -> tuple[int, int]:
    """Return the lowest and highest of ``key - position(query)``; the range always includes 0."""
    first, last = frame.offset, frame.offset + frame.queries - 1  # positions of the first and last query
    return -max(last, 0), max(frame.keys - 1 - first, 0)


def distances(frame: Frame, rows: Int[Tensor, " rows"]) -> Int[Tensor, "rows keys"]:
    """Compute ``key - position(query)`` for the queries ``rows`` and all keys."""
    return torch.arange(frame.keys, device=rows.device) - frame.query_positions(rows)[:, None]


def rotate_tokens(position: Rotation, tokens: Tensor, offsets: Sequence[int] | Tensor, *, parts: int = 1) -> Tensor:
    """Rotate each of ``parts`` equal parts of tokens (batch, heads, length, head_dim).

    Positions start at one offset per batch entry, or at one for all; a tensor (length,) has the position of each token.
    Raises ShapeError for another number of offsets.
    """
    if parts > 1:
        tokens = tokens.unflatten(-1, (parts, -1)).transpose(2, 3)
        return _rotate_from(position, tokens, offsets).transpose(2, 3).flatten(3)
    return _rotate_from(position, tokens, offsets)


def _rotate_from(position: Rotation, tokens: Tensor, offsets: Sequence[int] | Tensor) -> Tensor:
    """Rotate tokens (batch, .., length, size)."""
    if isinstance(offsets, Tensor):
        return position.rotate_at(tokens, offsets)
    if len(set(offsets)) < 2:
        rotated: Tensor = position(tokens, offset=offsets[0] if offsets else 0)
        return rotated
    if len(offsets) != len(tokens):
        raise ShapeError(
            "tokens and the cache have different batch sizes",
            expected=f"tokens of {len(offsets)} sequences, as in the cache",
            got=str(len(tokens)),
            do="select the sequences to continue with cache.reordered(...)",
        )
    parts = zip(tokens.split(1), offsets, strict=True)
    return torch.cat([position(part, offset=offset) for part, offset in parts])
