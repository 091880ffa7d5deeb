"""Relative positions of Transformer-XL: sinusoids of the distance, projected, and scored against each query.

    score(i, j) = (q_i . k_j + (q_i + c) . W_h s(i - j)) / sqrt(d)          s: sinusoids of width, see ``Sinusoidal``

Dai et al. 2019, "Transformer-XL", section 3.3, and Gulati et al. 2020 (Conformer), section 2.1. The paper writes
(q_i + u) . k_j + (q_i + v) . W_h s(i - j). Here u is the bias of the query projection, which the layer has anyway, and
c = v - u: the same scores with one trained vector less. W (heads head_dim, width), c (heads, head_dim); any length.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.contract import Frame
from regard.errors import ShapeError, check_sizes, check_weights
from regard.positions.absolute import Sinusoidal
from regard.positions.base import DistanceTerms, PairBias, distance_range, distances


@final
@explain_arguments
class RelativeSinusoidal(PairBias):
    """Relative positions of Transformer-XL, for ``heads`` of ``head_dim``; ``width`` (even) is the width of sinusoids.

    ``weight`` projects the sinusoids to heads, ``query_bias`` (heads, head_dim) is added to the queries.
    """

    def __init__(self, heads: int, head_dim: int, width: int) -> None:
        super().__init__()
        check_sizes(heads=heads, head_dim=head_dim)
        self.sinusoidal = Sinusoidal(width)
        check_weights(heads=heads, head_dim=head_dim, width=width)
        self.weight = nn.Parameter(torch.empty(heads * head_dim, width))
        self.query_bias = nn.Parameter(torch.zeros(heads, head_dim))
        nn.init.xavier_uniform_(self.weight)

    def check(self, query: Tensor, value: Tensor) -> None:
        """Raise ShapeError unless the query has the heads and the head_dim of these positions."""
        del value
        heads, head_dim = self.query_bias.shape
        if query.shape[1] != heads or query.shape[-1] != head_dim:
            raise ShapeError(
                "bias RelativeSinusoidal was made for other heads",
                expected=f"{query.shape[1]} heads of {query.shape[-1]}, as the query has",
                got=f"{heads} heads of {head_dim}",
                do="build it with the query's heads and head_dim",
            )

    def scores(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        frame: Frame,
        rows: Int[Tensor, " rows"],
        scale: float,
    ) -> Float[Tensor, "batch heads rows keys"]:
        """Compute ``scale * (q_i + c) . W s(i - j)``."""
        lowest, highest = distance_range(frame)
        vectors = self._project_sinusoids(lowest, highest, query)
        by_distance = ((query + self.query_bias.to(query)[:, None]) * scale) @ vectors
        index = highest - distances(frame, rows.to(query.device))
        return by_distance.gather(-1, index.expand(*by_distance.shape[:2], *index.shape))

    def distance_terms(self, heads: int, queries: int, keys: int, scale: float) -> DistanceTerms:
        """Return the projected sinusoids of each head, and their products with ``query_bias``."""
        del heads
        farthest = max(queries, keys) - 1
        table = scale * torch.einsum("hc,hdc->hd", self.query_bias, self.vectors(1 - keys, queries - 1))
        return DistanceTerms(table, self.vectors(-farthest, farthest))

    def vectors(self, lowest: int, highest: int) -> Float[Tensor, "heads distances head_dim"]:
        """Compute ``W_h s(i - j)`` for the distances j - i from ``lowest`` to ``highest``."""
        return self._project_sinusoids(lowest, highest, self.weight).permute(0, 2, 1).flip(1)

    def _project_sinusoids(self, lowest: int, highest: int, like: Tensor) -> Float[Tensor, "heads head_dim distances"]:
        """Compute ``W_h s(i - j)`` in order of i - j, from -highest to -lowest, in the dtype of ``like``."""
        heads, head_dim = self.query_bias.shape
        sinusoids = self.sinusoidal(highest - lowest + 1, offset=-highest).to(like)
        return (sinusoids @ self.weight.to(like).T).view(-1, heads, head_dim).permute(1, 2, 0)

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        heads, head_dim = self.query_bias.shape
        return f"heads={heads}, head_dim={head_dim}, width={self.weight.shape[1]}"
