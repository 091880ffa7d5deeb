"""Measures of a query's weights and output against exact attention.

With the exact weights p (0 or more, sum 1) and the weights w of another mechanism, of either sign and with any sum:

    mass kept         sum_j min(p_j, max(w_j, 0) / max(1, sum_k |w_k|))
    mass covered      sum_j p_j over the keys j with w_j != 0
    top-k agreement   the part of the k keys with the largest p_j that are among the k keys with the largest w_j > 0
    output error      |o' - o| / |o|, with the Euclidean norm

The mass kept is from 0 to 1. For two distributions it is 1 minus their total variation distance,
sum_j |p_j - w_j| / 2. If w is softmax over some of the keys, with the scores of p, then w_j >= p_j there: the mass
kept is the mass covered, the sum of p over those keys. A negative weight keeps nothing, and weights whose absolute
values sum to more than 1 are divided by that sum: else large weights everywhere would keep all. Mechanisms that give
every key some weight (linear attention, random features, landmarks) cover all of the mass, and may still keep little.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import DeviceError, DtypeError, ShapeError, check_count, short_repr
from regard.tensors import check_tensor
from regard.validation import FLOATS


@explain_arguments
def mass_kept(
    exact: Float[Tensor, "*queries keys"], other: Float[Tensor, "*queries keys"]
) -> Float[Tensor, "*queries"]:
    """Compute how much of each query's exact weights is also in ``other``: the sum of the smaller of the two.

    Weights below 0 count as 0, and those whose absolute values sum to more than 1 are divided by that sum.
    From 0 to 1; 0 for a query without visible keys. Raises ShapeError if the shapes differ.
    """
    _check_pair(exact, other, "weights (.., queries, keys)")
    share = other.clamp(min=0) / other.abs().sum(-1, keepdim=True).clamp(min=1)
    return torch.minimum(exact, share).sum(-1)


@explain_arguments
def mass_covered(
    exact: Float[Tensor, "*queries keys"], other: Float[Tensor, "*queries keys"]
) -> Float[Tensor, "*queries"]:
    """Compute the sum of each query's exact weights over the keys to which ``other`` gives any weight.

    From 0 to 1; 0 for a query without visible keys. Raises ShapeError if the shapes differ.
    """
    _check_pair(exact, other, "weights (.., queries, keys)")
    return torch.where(other != 0, exact, 0.0).sum(-1) + 0 * other.sum(-1)  # NaN in a row stays NaN


@explain_arguments
def top_agreement(
    exact: Float[Tensor, "*queries keys"], other: Float[Tensor, "*queries keys"], top: int = 8
) -> Float[Tensor, "*queries"]:
    """Compute which part of the ``top`` keys with the largest exact weights are among the ``top`` keys of ``other``.

    Only keys of positive weight count, so with fewer of them in ``exact`` the part is of these; it is NaN if there are
    none. Which of several keys of equal weight are among the largest is not specified. Raises ShapeError if the shapes
    differ, and OptionError if ``top`` is less than 1.
    """
    _check_pair(exact, other, "weights (.., queries, keys)")
    check_count("top", top)
    expected, found = _mark_top(exact, top), _mark_top(other, top)
    agreement = (expected & found).sum(-1) / expected.sum(-1)
    return agreement + 0 * other.sum(-1)  # NaN in a row stays NaN


@explain_arguments
def output_error(
    exact: Float[Tensor, "*queries value_dim"], other: Float[Tensor, "*queries value_dim"]
) -> Float[Tensor, "*queries"]:
    """Compute |o' - o| / |o| of each query, with the Euclidean norm; NaN if both outputs are 0.

    Raises ShapeError if the shapes differ.
    """
    _check_pair(exact, other, "outputs (.., queries, value_dim)")
    return (other - exact).norm(dim=-1) / exact.norm(dim=-1)


def _mark_top(weights: Tensor, top: int) -> Tensor:
    """Mark the ``top`` largest weights of each query, if they are positive."""
    keys = weights.topk(min(top, weights.shape[-1]), dim=-1).indices
    return torch.zeros_like(weights, dtype=torch.bool).scatter_(-1, keys, True) & (weights > 0)


def _check_pair(exact: Tensor, other: Tensor, kind: str) -> None:
    """Raise an error unless both are tensors of floating-point numbers of one shape, dtype and device."""
    for name, weights in (("exact", exact), ("other", other)):
        check_tensor(name, weights, kind)
        if weights.dtype not in FLOATS or weights.dim() == 0:
            raise DtypeError(
                f"{name} has the wrong dtype or no dimensions",
                expected=f"floating-point {kind}",
                got=short_repr(weights),
                do="pass what Mechanism.weights or a call of a mechanism returns",
            )
    if exact.shape != other.shape:
        raise ShapeError(
            "exact and other have different shapes",
            expected=f"{kind} of the same queries",
            got=f"{tuple(exact.shape)} and {tuple(other.shape)}",
            do="compute both for the same queries and keys",
        )
    if exact.device != other.device:
        raise DeviceError(
            "exact and other are on different devices",
            expected=str(exact.device),
            got=str(other.device),
            do="move one of them with .to(device)",
        )
