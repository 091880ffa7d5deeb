"""``ScoredMechanism``: base class of exact softmax mechanisms that differ in their score.

    o_i = softmax_j(score(q_i, k_j) + bias_ij) v_j      over the keys j that the mask allows

A subclass computes the scores of some queries, and everything else follows, in plain torch.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import final

from jaxtyping import Float, Int
from torch import Tensor

from regard.contract import Observation
from regard.kernels.reference import attention as reference_attention
from regard.kernels.reference import observe as reference_observe
from regard.kernels.request import Request
from regard.mechanisms.base import Mechanism, Traits


class ScoredMechanism(Mechanism):
    """An exact softmax mechanism, defined by its score: softmax(score + bias) V."""

    traits = Traits(ignores_hidden_keys=True)

    @abstractmethod
    def score(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
    ) -> Float[Tensor, "batch heads rows keys"]:
        """Compute the scores of some queries (batch, heads, rows, keys), in the dtype of ``query``."""

    @final
    def make_problem(self, request: Request) -> reference_attention.ScoreProblem:
        """Convert a request to the problem that the reference implementation computes in plain torch."""
        return reference_attention.make_problem(
            self.score, request.query, request.key, request.value, request.terms, tuple(self.parameters())
        )

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output in plain torch."""
        return reference_attention.compute_output(
            self.make_problem(request), dropout=request.terms.dropout, dtype=request.query.dtype
        )

    def row_weights(self, request: Request, rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows keys"]:
        """Compute the softmax of the scores of some queries."""
        return reference_attention.compute_weights(self.make_problem(request), rows)

    def observe_request(self, request: Request, top: int, rows: Int[Tensor, " rows"] | None) -> Observation:
        """Compute the output and statistics of the weights in plain torch, in tiles."""
        return reference_observe.observe(self.make_problem(request), top=top, rows=rows, dtype=request.query.dtype)
