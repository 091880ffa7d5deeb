"""Relative positions of Shaw et al.: a trained vector for each clipped distance, added to keys and to values.

    score(i, j) = q_i . (k_j + a^K_clip(j - i)) / sqrt(d)
    output(i)   = sum_j w_ij (v_j + a^V_clip(j - i)),      clip(n) = max(-m, min(m, n))

Shaw et al. 2018, equations 1 to 5. The vectors are shared by all heads: (2 m + 1, head_dim). The value term
needs the weights, so only an implementation that forms them computes it (impl "reference"); ``values=False`` omits
it, which costs no quality in the paper's table 3.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.contract import Frame
from regard.errors import LARGEST_SIZE, ShapeError, check_count, check_flag, check_sizes
from regard.positions.base import DistanceTerms, PairBias, distances


@final
@explain_arguments
class ShawRelative(PairBias):
    """Trained vectors for the distances -max_distance .. max_distance.

    ``value_dim`` is the head_dim of the values, None if it equals the head_dim of the keys; ``values=False`` omits the
    value term.
    """

    def __init__(
        self, head_dim: int, max_distance: int = 16, *, value_dim: int | None = None, values: bool = True
    ) -> None:
        super().__init__()
        value_dim = head_dim if value_dim is None else value_dim
        check_sizes(head_dim=head_dim, value_dim=value_dim)
        check_count("max_distance", max_distance, minimum=0, maximum=LARGEST_SIZE)
        check_flag("values", values)
        self.max_distance = max_distance
        count = 2 * max_distance + 1
        self.key_vectors = nn.Parameter(torch.randn(count, head_dim) * head_dim**-0.5)
        self.value_vectors: nn.Parameter | None = None
        if values:
            self.value_vectors = nn.Parameter(torch.randn(count, value_dim) * value_dim**-0.5)

    def check(self, query: Tensor, value: Tensor) -> None:
        """Raise ShapeError unless the vectors have the head_dim of the query and the value_dim of the value."""
        sides = [("head_dim", self.key_vectors, query)]
        if self.value_vectors is not None and value.shape[-1] != 0:
            sides.append(("value_dim", self.value_vectors, value))
        for name, vectors, tokens in sides:
            if vectors.shape[1] != tokens.shape[-1]:
                raise ShapeError(
                    f"bias ShawRelative was made for another {name}",
                    expected=f"{name} {tokens.shape[-1]}, as the tensors have",
                    got=f"{name} {vectors.shape[1]}",
                    do=f"build it with {name}={tokens.shape[-1]}",
                )

    def scores(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        frame: Frame,
        rows: Int[Tensor, " rows"],
        scale: float,
    ) -> Float[Tensor, "batch heads rows keys"]:
        """Compute ``scale * q_i . a^K_clip(j - i)``."""
        return score_distances(query * scale, self.key_vectors, frame, rows)

    def values(
        self, weights: Float[Tensor, "batch heads rows keys"], frame: Frame, rows: Int[Tensor, " rows"]
    ) -> Float[Tensor, "batch heads rows value_dim"] | None:
        """Compute the value term: the weights summed by distance, times ``a^V``."""
        if self.value_vectors is None:
            return None
        index = _distance_index(self.max_distance, frame, rows.to(weights.device))
        by_distance = weights.new_zeros(*weights.shape[:3], 2 * self.max_distance + 1)
        by_distance = by_distance.scatter_add(-1, index.expand(*weights.shape[:2], *index.shape), weights)
        return by_distance @ self.value_vectors.to(weights)

    def distance_terms(self, heads: int, queries: int, keys: int, scale: float) -> DistanceTerms:
        """Return the vectors, the same for all heads."""
        del heads, queries, keys, scale
        return DistanceTerms(keys=self.key_vectors[None], values=self.value_vectors)

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"head_dim={self.key_vectors.shape[1]}, max_distance={self.max_distance}"


def score_distances(
    query: Float[Tensor, "batch heads rows head_dim"],
    key_vectors: Float[Tensor, "*heads distances head_dim"],
    frame: Frame,
    rows: Int[Tensor, " rows"],
) -> Float[Tensor, "batch heads rows keys"]:
    """Compute ``q_i . a^K_clip(j - i)`` for the queries ``rows`` (indices) of ``frame``; vectors may differ by head."""
    by_distance = query @ key_vectors.to(query).mT
    index = _distance_index(key_vectors.shape[-2] // 2, frame, rows.to(query.device))
    return by_distance.gather(-1, index.expand(*by_distance.shape[:2], *index.shape))


def _distance_index(max_distance: int, frame: Frame, rows: Int[Tensor, " rows"]) -> Int[Tensor, "rows keys"]:
    """Compute the index of each pair's vector."""
    return distances(frame, rows).clamp(-max_distance, max_distance) + max_distance
