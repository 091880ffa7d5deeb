"""Mixture of experts: a feed-forward layer that sends each token to the best of several experts.

    z = x W_r + b_r                                          logits of the experts, (.., experts)
    p = softmax of the k largest z,   y = sum of p_e FFN_e(x) over these k experts
    FFN_e(x) = ((u + 1) * g sigmoid(1.702 g)) W_d + b_d,    (g, u) = x W_gu + b_gu, g at most 7, u from -7 to 7

Shazeer et al. 2017, "Outrageously large neural networks: the sparsely-gated mixture-of-experts layer", section 2, with
the clamped gate of gpt-oss (OpenAI 2025, "gpt-oss-120b and gpt-oss-20b model card", section 2.2). Shapes:
(batch, length, width) -> (batch, length, width).

``SharedExpertMixture`` has plain gated experts and one more, which every token uses: Dai et al. 2024, "DeepSeekMoE",
section 3.2, with the gate of Qwen2-MoE and Qwen3-Next:

    y = sum of p_e FFN_e(x) over the k experts + sigmoid(x w) FFN_shared(x)

With ``normalized=False`` p is the softmax of all z, so that the shares of the k experts have a sum below 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import OptionError, ShapeError, check_flag, check_sizes, check_weights
from regard.layers.feed_forward import FeedForward
from regard.layers.projection import linear_activation
from regard.validation import check_tokens

_GATE_SLOPE = 1.702
_LIMIT = 7.0


@final
class Experts(nn.Module):
    """The weights of all experts, as in the files of gpt-oss: gate and up are the even and the odd columns.

    gate_up_proj  (experts, width, 2 inner)      gate_up_proj_bias  (experts, 2 inner)
    down_proj     (experts, inner, width)        down_proj_bias     (experts, width)
    """

    def __init__(self, width: int, inner: int, experts: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(experts, width, 2 * inner))
        self.gate_up_proj_bias = nn.Parameter(torch.zeros(experts, 2 * inner))
        self.down_proj = nn.Parameter(torch.empty(experts, inner, width))
        self.down_proj_bias = nn.Parameter(torch.zeros(experts, width))
        for weight in (self.gate_up_proj, self.down_proj):
            nn.init.normal_(weight, std=width**-0.5)

    def forward(self, tokens: Tensor, expert: int) -> Tensor:
        """Transform tokens (tokens, width) by one expert."""
        both = torch.addmm(self.gate_up_proj_bias[expert], tokens, self.gate_up_proj[expert])
        gate, up = both[:, 0::2].clamp(max=_LIMIT), both[:, 1::2].clamp(-_LIMIT, _LIMIT)
        inner = (up + 1) * (gate * torch.sigmoid(gate * _GATE_SLOPE))
        return torch.addmm(self.down_proj_bias[expert], inner, self.down_proj[expert])


@final
@explain_arguments
class MixtureOfExperts(nn.Module):
    """Feed-forward layer of ``experts`` experts of size ``inner``, of which each token uses ``chosen``."""

    def __init__(self, width: int, inner: int, *, experts: int, chosen: int) -> None:
        super().__init__()
        _check_sizes(width, inner, experts, chosen)
        self.chosen = chosen
        self.router = nn.Linear(width, experts)
        self.experts = Experts(width, inner, experts)

    def forward(self, tokens: Tensor) -> Tensor:
        """Transform tokens (batch, length, width) to the same shape. Raises ShapeError for another width."""
        width = self.router.in_features
        check_tokens("tokens", tokens, f"(batch, length, {width})")
        if tokens.dim() < 1 or tokens.shape[-1] != width:
            raise ShapeError(
                "tokens do not fit the mixture of experts",
                expected=f"(batch, length, {width})",
                got=str(tuple(tokens.shape)),
                do="build the layer with the width of its tokens",
            )
        flat = tokens.reshape(-1, tokens.shape[-1])
        return _mix_experts(flat, self.router, self.chosen, self.experts).view(tokens.shape)

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"chosen={self.chosen}"


@final
@explain_arguments
class SharedExpertMixture(nn.Module):
    """Mixture of ``experts`` SwiGLU layers of size ``inner``, of which each token uses ``chosen``, and a shared one of
    size ``shared_inner``, which every token uses. ``normalized`` is whether the shares of the chosen ones sum to 1.
    """

    def __init__(
        self, width: int, inner: int, *, experts: int, chosen: int, shared_inner: int, normalized: bool = True
    ) -> None:
        super().__init__()
        _check_sizes(width, inner, experts, chosen)
        check_flag("normalized", normalized)
        self.chosen, self.normalized = chosen, normalized
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(_make_swiglu(width, inner) for _ in range(experts))
        self.shared = _make_swiglu(width, shared_inner)
        self.shared_gate = nn.Linear(width, 1, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Transform tokens (batch, length, width) to the same shape. Raises ShapeError for another width."""
        shared = self.shared(tokens)
        flat = tokens.reshape(-1, tokens.shape[-1])
        mixed = _mix_experts(
            flat,
            self.router,
            self.chosen,
            lambda rows, expert: self.experts[expert](rows),
            normalized=self.normalized,
        )
        output: Tensor = mixed.view(tokens.shape) + linear_activation(tokens, self.shared_gate).sigmoid() * shared
        return output

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"chosen={self.chosen}"


def _make_swiglu(width: int, inner: int) -> FeedForward:
    return FeedForward(width, inner, activation="swiglu", bias=False)


def _check_sizes(width: int, inner: int, experts: int, chosen: int) -> None:
    """Raise OptionError for sizes out of range, and for more chosen experts than there are."""
    check_sizes(width=width, inner=inner, experts=experts, chosen=chosen)
    check_weights(experts=experts, width=width, inner=2 * inner)
    if chosen > experts:
        raise OptionError(
            "a token cannot use more experts than there are",
            expected=f"chosen from 1 to experts={experts}",
            got=str(chosen),
            do="choose fewer",
        )


def _mix_experts(
    tokens: Float[Tensor, "tokens width"],
    router: nn.Linear,
    chosen: int,
    compute: Callable[[Tensor, int], Tensor],
    *,
    normalized: bool = True,
) -> Float[Tensor, "tokens width"]:
    """Sum the outputs of the ``chosen`` experts of each token, by the softmax of their logits, or of all logits.

    ``compute`` transforms tokens by an expert.
    """
    logits = linear_activation(tokens, router)
    highest, choices = logits.topk(chosen, dim=-1)
    shares = highest.softmax(dim=-1) if normalized else logits.softmax(dim=-1).gather(-1, choices)
    output = torch.zeros_like(tokens)
    for expert in choices.unique().tolist():
        rows, ranks = (choices == expert).nonzero(as_tuple=True)
        # Each token chooses an expert once, so no row is added to twice.
        of_rows = compute(tokens[rows], expert) * shares[rows, ranks, None]
        output = output.index_add(0, rows, of_rows.to(output.dtype))  # under autocast they differ
    return output
