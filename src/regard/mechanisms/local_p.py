"""Local attention that predicts where to look: Luong's local-p.

    p_t      = F + S sigmoid(v_p . tanh(W_p h_t))               among S keys, the first of which is F
    a_t(s)   = align(h_t, s) exp(-(s - p_t)^2 / (2 sigma^2))     sigma = D / 2, for p_t - D <= s <= p_t + D
    output_t = sum_s a_t(s) value_s

Luong et al. 2015, section 3.2, equations 9 and 10. ``align`` is the softmax of the general score (h . W k) over the
window alone. The Gaussian comes after it and nothing is normalised again, so weights sum to less than 1. Positions s
are counted from 0, where the paper has F = 0 and S keys. F is the first key that the query may see, so padding on the
left changes nothing, and S is how many there are from F to the last one: hidden keys between others count. query
(batch, heads, queries, head_dim), key (batch, heads, keys, head_dim).

Time and memory are queries * keys, since every score is computed, in plain torch: there are no kernels for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard import masks
from regard.arguments import explain_arguments
from regard.errors import check_size
from regard.kernels.autocast import disable_autocast
from regard.kernels.reference.attention import ScoreProblem, compute_weights, full_precision
from regard.kernels.request import Request
from regard.kernels.results import accumulation_dtype
from regard.masks import Mask
from regard.mechanisms.base import Mechanism, Traits
from regard.mechanisms.luong import LuongGeneral
from regard.mechanisms.mlp_score import per_head_linear
from regard.mechanisms.steps import Gaussian, Steps


@final
@explain_arguments
class LocalPredictive(Mechanism):
    """local-p; ``window`` is D. Keys are counted from the first that a query may see, so padding may be on either side.

    ``position_weight`` (heads, head_dim, head_dim) and ``position_vector`` (heads, head_dim) are W_p and v_p.
    """

    traits = Traits(weights_are="non-negative", takes_rotation=False)

    def __init__(self, *, heads: int, head_dim: int, window: int = 10, dropout: float = 0.0) -> None:
        super().__init__(heads=heads, head_dim=head_dim, dropout=dropout)
        check_size("window", window)
        self.window = window
        self.align = LuongGeneral(heads=heads, head_dim=head_dim)
        self.position_weight = nn.Parameter(torch.randn(heads, head_dim, head_dim) * head_dim**-0.5)
        self.position_vector = nn.Parameter(torch.randn(heads, head_dim) * head_dim**-0.5)

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Return the output of equation 10 (batch, heads, queries, value_dim)."""
        gaussian = self._gaussian(request)
        problem = self.align.make_problem(self._restrict_to_window(request, gaussian))
        rows = problem.frame.all_rows(request.device)
        with full_precision(problem):
            weights, broken = _gaussian_weights(problem, rows, gaussian.heights(request.frame.keys))
            empty = (weights == 0.0).all(-1)
            output = problem.mix(nn.functional.dropout(weights, request.terms.dropout), empty, rows)
            return output.masked_fill(broken.any(-1, keepdim=True), torch.nan).to(request.query.dtype)

    def row_weights(self, request: Request, rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows keys"]:
        """Return the weights a_t of some queries (batch, heads, rows, keys)."""
        gaussian = self._gaussian(request)
        problem = self.align.make_problem(self._restrict_to_window(request, gaussian))
        weights, broken = _gaussian_weights(problem, rows, gaussian.heights(request.frame.keys)[:, :, rows])
        return weights.masked_fill(broken, torch.nan)

    def steps(self, request: Request) -> Steps:
        """Return the steps of the alignment inside the window, with the Gaussian as gate."""
        gaussian = self._gaussian(request)
        restricted = self.align.steps(self._restrict_to_window(request, gaussian))
        return replace(restricted, gate=gaussian, hidden_by="window")

    def positions(self, query: Tensor, key: Tensor, mask: Mask | None = None) -> Float[Tensor, "batch heads queries 1"]:
        """Return the predicted position p_t of every query (batch, heads, queries, 1), not rounded."""
        with disable_autocast(query.device):
            # A non-finite query is replaced by zeros: its row would make the gradients of the parameters NaN.
            query = torch.where(query.isfinite().all(-1, keepdim=True), query, 0.0).to(accumulation_dtype(query.dtype))
            hidden = torch.tanh(per_head_linear(query, self.position_weight.to(query)))
            share = torch.sigmoid(per_head_linear(hidden, self.position_vector.to(query)[:, None]))
            if mask is None:
                return share * key.shape[2]
            first, count = _find_visible_keys(mask, query, key)
            return first + share * count

    def _gaussian(self, request: Request) -> Gaussian:
        """Return the Gaussian around p_t, with standard deviation D / 2."""
        return Gaussian(self.positions(request.query, request.key, request.mask)[..., 0], self.window / 2)

    def _restrict_to_window(self, request: Request, gaussian: Gaussian) -> Request:
        """Return the request with its mask restricted to the window of each query."""
        window = masks.keep(gaussian.distances(request.frame.keys).detach().abs() <= self.window)
        return request.replace(mask=window if request.mask is None else request.mask & window)

    def extra_repr(self) -> str:
        """Return the options shown by ``repr``."""
        return f"{super().extra_repr()}, window={self.window}"


def _gaussian_weights(
    problem: ScoreProblem, rows: Tensor, gaussian: Float[Tensor, "batch heads rows keys"]
) -> tuple[Float[Tensor, "batch heads rows keys"], Bool[Tensor, "batch heads rows keys"]]:
    """Return align(h_t, s) times the Gaussian, NaN replaced by 0 to keep gradients finite, and where it was NaN.

    Weights of hidden keys are 0 already; setting them to 0 also stops their gradients, which may overflow.
    """
    align, allowed = compute_weights(problem, rows), problem.dense_mask(rows)
    weights = align.masked_fill(align.isnan(), 0.0) * gaussian
    return weights if allowed is None else weights.masked_fill(~allowed, 0.0), align.isnan()


def _find_visible_keys(mask: Mask, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Find the first key that each query may attend to, and count those from it to the last one.

    Both are (batch or 1, heads or 1, queries or 1, 1).

    For a query without keys both are 0.
    """
    allowed = mask.dense(query.shape[2], key.shape[2], device=query.device)
    allowed = allowed.expand(*allowed.shape[:3], key.shape[2])
    if allowed.shape[3] == 0:
        none = allowed.sum(-1, keepdim=True)
        return none, none
    cells = allowed.to(torch.uint8)
    first, after_last = cells.argmax(-1, keepdim=True), allowed.shape[3] - cells.flip(-1).argmax(-1, keepdim=True)
    return first, torch.where(allowed.any(-1, keepdim=True), after_last - first, 0)
