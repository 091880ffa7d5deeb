"""Differential attention: the difference of two softmaxes, which cancels what both attend to alike.

    [q1; q2] = q    [k1; k2] = k    scale = 1/sqrt(head_dim / 2)
    o_i = sum_j w_ij v_j            w_ij = softmax_j(scale * q1_i . k1_j) - lambda softmax_j(scale * q2_i . k2_j)
    lambda = exp(a1 . b1) - exp(a2 . b2) + lambda_init          lambda_init = 0.8 - 0.6 exp(-0.3 depth)
    head_i = (1 - lambda_init) o_i / rms(o_i)                   by a layer, before its output projection

Ye et al. 2025, "Differential transformer", equations 1 to 3. The halves of a query and of a key follow the paper, where
a head has values of twice the size: a layer has half as many heads as with softmax attention, each twice as large.
Trained are a (2, head_dim / 2) and b (2, head_dim / 2), ``lambda_query`` and ``lambda_key``, shared by all heads.
``depth`` counts layers from 0, the paper from 1.

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim) -> (batch, heads, queries, value_dim),
in n^2 d operations: two calls of exact dot-product attention, by its kernels. Weights have either sign. The head-wise
normalisation is not linear in the values, so it is not part of the weights; layers apply ``normalize_heads``.
"""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import OptionError, check_count, check_number, check_size
from regard.kernels.autocast import disable_autocast
from regard.kernels.reference.attention import compute_weights, make_dot_product_problem
from regard.kernels.request import Request
from regard.kernels.results import accumulation_dtype
from regard.kernels.select import attend
from regard.mechanisms.base import Mechanism, Traits
from regard.mechanisms.clean_tokens import fill_numbers
from regard.mechanisms.steps import Branch, Branches, Steps
from regard.positions.base import DistanceBias, PairBias
from regard.tensors import check_tensor


@final
@explain_arguments
class Differential(Mechanism):
    """Differential attention: softmax of the first half of queries and keys, minus lambda softmax of the second.

    ``head_dim`` is even. ``depth`` is the number of layers below, from which lambda starts; ``epsilon`` is the epsilon
    of the normalisation. Weights are dropped in each softmax independently.
    """

    traits = Traits(
        weights_are="signed",
        divides_scores=True,
        score_parts=2,
        ignores_hidden_keys=True,
        no_steps_reason="This mechanism subtracts one softmax from another.",
    )

    def __init__(
        self, *, heads: int, head_dim: int, depth: int = 0, epsilon: float = 1e-5, dropout: float = 0.0
    ) -> None:
        super().__init__(heads=heads, head_dim=head_dim, dropout=dropout)
        check_count("depth", depth, minimum=0)
        check_number("epsilon", epsilon, minimum=0.0)
        if head_dim % 2:
            raise OptionError(
                "differential attention splits each query and key into two halves",
                expected="an even head_dim",
                got=f"head_dim={head_dim}",
                do="use a head_dim of twice the size of a half, so half as many heads as with dot_product",
            )
        self.depth, self.epsilon = depth, float(epsilon)
        self.lambda_query = nn.Parameter(0.1 * torch.randn(2, head_dim // 2))
        self.lambda_key = nn.Parameter(0.1 * torch.randn(2, head_dim // 2))

    @property
    def lambda_init(self) -> float:
        """The value around which lambda is trained: 0.8 - 0.6 exp(-0.3 depth)."""
        return 0.8 - 0.6 * math.exp(-0.3 * self.depth)

    def compute_lambda(self) -> Float[Tensor, ""]:
        """Compute the factor of the second softmax, in float32 (float64 for parameters in float64)."""
        dtype = accumulation_dtype(self.lambda_query.dtype)
        first, second = (self.lambda_query.to(dtype) * self.lambda_key.to(dtype)).sum(-1).exp()
        return first - second + self.lambda_init

    def normalize_heads(
        self, output: Float[Tensor, "batch heads queries value_dim"]
    ) -> Float[Tensor, "batch heads queries value_dim"]:
        """Divide the output of each head by its root mean square, and multiply it by 1 - lambda_init."""
        with disable_autocast(output.device):
            wide = output.to(accumulation_dtype(output.dtype))
            norm = torch.nn.functional.rms_norm(wide, wide.shape[-1:], eps=self.epsilon)
            return ((1.0 - self.lambda_init) * norm).to(output.dtype)

    def refuses(self, request: Request) -> str | None:
        """Refuse a bias that is computed from the queries."""
        if isinstance(request.bias, PairBias) and not isinstance(request.bias, DistanceBias):
            return f"{type(request.bias).__name__} computes a bias from queries, and these have two parts here"
        return None

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output; half precision is computed in float32 and rounded once."""
        dtype = accumulation_dtype(request.query.dtype)
        with disable_autocast(request.device):
            factor = self.compute_lambda().to(dtype)
            first, second = (attend("attention", "auto", half) for half in self._halves(request, dtype))
            bad = (first + second).detach().isnan()
            # 0 times NaN would be NaN in the gradient of lambda.
            first, second = fill_numbers(first, bad, 0.0), fill_numbers(second, bad, 0.0)
            return fill_numbers(first - _multiply(factor, second), bad, torch.nan).to(request.query.dtype)

    def row_weights(self, request: Request, rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows keys"]:
        """Compute the difference of the two softmaxes of some queries."""
        dtype = accumulation_dtype(request.query.dtype)
        first, second = (compute_weights(make_dot_product_problem(half), rows) for half in self._halves(request, dtype))
        return first - self.compute_lambda().to(first) * second

    def softmaxes(self, request: Request) -> Branches | None:
        """Return the two softmaxes, the second times -lambda; None with a bias."""
        if request.bias is not None:
            return None
        dtype = accumulation_dtype(request.query.dtype)
        first, second = (
            Steps(half.query, half.repeated_key, half.mask, scale=half.terms.scale)
            for half in self._halves(request, dtype)
        )
        factor = self.compute_lambda().to(dtype).expand(request.query.shape[:3])
        return Branches((Branch("first", first, torch.ones_like(factor)), Branch("second", second, -factor)))

    def _halves(self, request: Request, dtype: torch.dtype) -> tuple[Request, Request]:
        """Split a request into two of dot-product attention, with the same values."""
        half, value = self.head_dim // 2, request.value.to(dtype)
        query, key = request.query.to(dtype), request.key.to(dtype)
        return (
            request.replace(query=query[..., :half], key=key[..., :half], value=value),
            request.replace(query=query[..., half:], key=key[..., half:], value=value),
        )

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"{super().extra_repr()}, depth={self.depth}"


def _multiply(
    factor: Float[Tensor, ""], output: Float[Tensor, "batch heads queries value_dim"]
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute ``factor * output``; elements that are 0 have no part in the gradient of the factor.

    Rows without visible keys are 0, and a NaN in their gradient must not reach the factor, since 0 * NaN is NaN.
    """
    if not torch.is_grad_enabled():
        return factor * output
    value = factor.detach()
    return value * output + ((factor - value) * output).masked_fill(output == 0.0, 0.0)


@explain_arguments
def pair_heads(weight: Tensor, size: int) -> Tensor:
    """Reorder the rows of a projection (heads * size, ..) from two groups of heads to pairs, one of each group.

    ``transformers`` stores a DiffLlama's projections of queries, keys and values with the first parts of all heads
    before the second ones; here the parts of a head are adjacent. ``size`` is the size of a part.
    """
    check_size("size", size)
    check_tensor("weight", weight, "the weight or bias of a projection")
    if weight.dim() < 1 or weight.shape[0] % (2 * size):
        raise OptionError(
            "the rows of a projection do not form pairs of heads",
            expected=f"a tensor with a multiple of {2 * size} rows",
            got=f"shape {tuple(weight.shape)}",
            do="pass the weight or bias of the projection, and as size the head_dim of its config",
        )
    return weight.unflatten(0, (2, -1, size)).transpose(0, 1).flatten(0, 2)
