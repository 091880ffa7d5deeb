"""Talking-heads attention: scores are mixed across heads before the softmax, and weights after it.

    s_h = scale * q_h . k_h     l_g = sum_h s_h P_hg + bias_g     u_g = softmax(l_g)     scale = 1/sqrt(head_dim)
    w_f = sum_g u_g R_gf        o_f = sum_j w_fj v_fj

Shazeer et al. 2020, "Talking-heads attention", section 4, with as many heads of scores, of softmaxes and of values. P
and R are trained: ``score_mixing`` and ``weight_mixing`` (heads, heads), from a head (row) to a head (column). With
two identities, near which they start, this is dot-product attention.

Output head f is linear in the values of head f, so its weights are w_f: of either sign, with any sum. They depend on
the queries and keys of all heads (``mixes_heads``), so a mask must be the same for all heads. A bias is added to the
mixed scores.

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim) -> (batch, heads, queries, value_dim),
in n^2 (d + heads) operations for each head. Exact, in memory linear in length, also in training: on a CPU in kernels of
its own, which compute all heads of a tile of queries together; else in plain torch, in tiles of queries.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import check_weights
from regard.kernels.reference import talking_heads as reference_talking_heads
from regard.kernels.reference.talking_heads import HeadMixing
from regard.kernels.request import Request
from regard.kernels.select import attend, impl_names
from regard.mechanisms.base import Mechanism, Traits
from regard.mechanisms.steps import MixedHeads, Steps


@final
@explain_arguments
class TalkingHeads(Mechanism):
    """Talking-heads attention: R softmax(P scores), mixed across heads by trained matrices.

    ``score_mixing`` and ``weight_mixing`` (heads, heads) are P and R. Dropout drops weights before they are mixed.
    ``impl`` is "native" (the fused kernels, on a CPU), "reference" (plain torch), or "auto": native if it supports the
    call. ``observe`` and ``weights`` run in plain torch, in tiles.
    """

    traits = Traits(
        weights_are="signed",
        implementations=impl_names("talking heads"),
        divides_scores=True,
        mixes_heads=True,
        ignores_hidden_keys=True,
        no_steps_reason="This mechanism mixes the scores and the weights of all heads.",
    )

    def __init__(self, *, heads: int, head_dim: int, dropout: float = 0.0, impl: str = "auto") -> None:
        super().__init__(heads=heads, head_dim=head_dim, dropout=dropout)
        self.impl = self.check_impl(impl)
        check_weights(heads=heads, rows=heads)
        self.score_mixing = nn.Parameter(torch.eye(heads) + 0.1 * torch.randn(heads, heads))
        self.weight_mixing = nn.Parameter(torch.eye(heads) + 0.1 * torch.randn(heads, heads))

    def refuses(self, request: Request) -> str | None:
        """Refuse masks that differ between heads."""
        if request.mask is not None and (request.mask.heads or 1) > 1:
            return "each head uses the scores of all heads, so a mask must be the same for all heads"
        return None

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output with the chosen implementation; half precision is computed in float32 and rounded once."""
        return attend("talking heads", self.impl, request, self._mixing)

    def row_weights(self, request: Request, rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows keys"]:
        """Compute the mixed weights of some queries."""
        return reference_talking_heads.compute_weights(request, self._mixing, rows)

    def softmaxes(self, request: Request) -> MixedHeads | None:
        """Return the inputs of the scores of all heads, and the matrices that mix them; None with a bias."""
        if request.bias is not None:
            return None
        steps = Steps(request.query, request.repeated_key, request.mask, scale=request.terms.scale)
        return MixedHeads(steps, self.score_mixing, self.weight_mixing)

    @property
    def _mixing(self) -> HeadMixing:
        return HeadMixing(self.score_mixing, self.weight_mixing)

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"{super().extra_repr()}, impl={self.impl!r}"
