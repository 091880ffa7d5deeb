"""Sigmoid attention: each weight is a sigmoid of its own score, so keys do not compete for a query's attention.

    o_i = sum_j w_ij v_j        w_ij = sigmoid(scale * q_i . k_j + b_i)        scale = 1/sqrt(head_dim)

Ramapuram et al. 2025, "Theory, analysis, and best practices for sigmoid self-attention", section 2. The bias b = -log n
makes n weights of equal scores add up to about 1, as the weights of a softmax do. Here n is the number of keys that the
query may attend to, so that neither padding nor later tokens have an influence; ``score_bias`` is a fixed number
instead, such as -log of the length of the texts in training. Weights are 0 or more, and their sum is any number.

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim) -> (batch, heads, queries, value_dim),
in n^2 d operations and memory linear in length, also in training: on a CPU in the kernels of exact attention, with
another function of the scores; else in plain torch, in tiles of queries.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import check_number
from regard.kernels.reference import sigmoid as reference_sigmoid
from regard.kernels.request import Request
from regard.kernels.select import attend, impl_names
from regard.mechanisms.base import Mechanism, Traits
from regard.mechanisms.steps import Steps


@final
@explain_arguments
class Sigmoid(Mechanism):
    """Sigmoid attention: sigmoid(scale * q . k + ``score_bias``).

    ``score_bias=None`` is -log of the number of keys that the query may attend to. ``impl`` is "native" (the fused
    kernels, on a CPU), "reference" (plain torch), or "auto": native if it supports the call. ``observe`` and
    ``weights`` run in plain torch, in tiles.
    """

    traits = Traits(
        weights_are="non-negative",
        implementations=impl_names("sigmoid attention"),
        divides_scores=True,
        ignores_hidden_keys=True,
    )

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        score_bias: float | None = None,
        dropout: float = 0.0,
        impl: str = "auto",
    ) -> None:
        super().__init__(heads=heads, head_dim=head_dim, dropout=dropout)
        self.impl = self.check_impl(impl)
        if score_bias is not None:
            check_number("score_bias", score_bias)
        self.score_bias = None if score_bias is None else float(score_bias)

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output with the chosen implementation."""
        return attend("sigmoid attention", self.impl, request, self.score_bias)

    def row_weights(self, request: Request, rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows keys"]:
        """Compute the sigmoids of the scores of some queries."""
        return reference_sigmoid.compute_weights(request, self.score_bias, rows)

    def steps(self, request: Request) -> Steps:
        """Return the inputs of the scaled dot product, and what is added to the scores of each query."""
        frame, added = request.frame, self.score_bias
        visible = torch.tensor(float(max(frame.keys, 1)))
        if request.mask is not None:
            allowed = request.mask.dense(frame.queries, frame.keys, device=request.device)
            visible = allowed.expand(*allowed.shape[:3], frame.keys).sum(-1).clamp(min=1)
        bias = -visible.to(request.query).log() if added is None else request.query.new_tensor(added)
        return Steps(
            request.query,
            request.repeated_key,
            request.mask,
            scale=request.terms.scale,
            sigmoid_bias=bias.expand(request.query.shape[:3]),
        )

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"{super().extra_repr()}, score_bias={self.score_bias}, impl={self.impl!r}"
