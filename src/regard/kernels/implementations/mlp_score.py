"""Attention whose score is a network with one hidden layer: the fused kernel, and plain torch.

    score_ij = v . tanh(a_i + b_j)          a depends on the query only, b on the key only: (inner) numbers each

Bahdanau et al. 2015, appendix A.1.2. Plain torch holds a queries x keys x inner tensor, the kernel not even a
queries x keys one. The kernel takes float32 and float64, after the projection, and no scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.kernels.autocast import disable_autocast
from regard.kernels.implementation import Implementation
from regard.kernels.implementations.native import request_unsupported_reason
from regard.kernels.operators.kernel_arguments import to_kernel_arguments
from regard.kernels.operators.score_op import ScoreOperator
from regard.kernels.reference import attention as reference_attention
from regard.kernels.request import Request, repeat_heads
from regard.kernels.results import accumulation_dtype

ADDITIVE = ScoreOperator("additive", "additive", ("of_query", "of_key", "vector", "value"), returns_lse=True)
"""regard::additive and its backward pass."""


@final
@dataclass(frozen=True)
class MLPScore:
    """Parts of the score: functions that compute a of queries and b of keys, in their dtype, and v (heads, inner); and
    b of all keys if it was computed before (``project_keys``).
    """

    project_query: Callable[[Tensor], Tensor]
    project_key: Callable[[Tensor], Tensor]
    vector: Callable[[], Tensor]
    projected_keys: Tensor | None = None
    score_parameters: tuple[Tensor, ...] = ()

    def project_keys(
        self, key: Float[Tensor, "batch key_heads keys head_dim"], group: int
    ) -> Float[Tensor, "batch heads keys inner"]:
        """Compute b of every key, in float32 for half precision; NaN if a key is not finite."""
        with disable_autocast(key.device):
            key, bad = zero_nonfinite(repeat_heads(key.to(accumulation_dtype(key.dtype)), group))
            return mark_nonfinite(self.project_key(key), bad)

    def score_pairs(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        projected_keys: Float[Tensor, "batch heads keys inner"],
    ) -> Float[Tensor, "batch heads rows keys"]:
        """Compute v . tanh(a + b) of every pair.

        Tokens that overflowed are replaced by 0 before tanh: its gradient at NaN is NaN, even for forbidden pairs.
        """
        of_query, bad_query = zero_nonfinite(self.project_query(query))
        of_key, bad_key = zero_nonfinite(projected_keys)
        hidden = torch.tanh(of_query[:, :, :, None, :] + of_key[:, :, None, :, :])
        scores = (hidden @ self.vector().to(query)[None, :, None, :, None]).squeeze(-1)
        return scores.masked_fill(bad_query | bad_key.transpose(-2, -1), torch.nan)


def zero_nonfinite(
    tokens: Float[Tensor, "batch heads length size"],
) -> tuple[Float[Tensor, "batch heads length size"], Bool[Tensor, "batch heads length 1"]]:
    """Replace tokens that contain NaN or Inf by zeros, and return which tokens were replaced."""
    bad = ~(tokens.detach().abs().amax(-1, keepdim=True) < torch.inf)
    return tokens.masked_fill(bad, 0.0), bad


def mark_nonfinite(
    tokens: Float[Tensor, "batch heads length size"], bad: Bool[Tensor, "batch heads length 1"]
) -> Float[Tensor, "batch heads length size"]:
    """Set the bad tokens to NaN; by adding it, which is cheaper than masked_fill, forward and backward."""
    return tokens + torch.where(bad, torch.nan, 0.0).to(tokens.dtype)


def _native(request: Request, score: MLPScore) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute attention with the kernel; half precision is computed in float32 and rounded once, at the end.

    Non-finite tokens are replaced by 0 before the projection, else they would make the weights' gradients NaN.
    """
    dtype = accumulation_dtype(request.query.dtype)
    with disable_autocast(request.device):
        known = score.projected_keys
        of_key = score.project_keys(request.key, request.group) if known is None else known
        value = repeat_heads(request.value.to(dtype), request.group)
        query, bad_query = zero_nonfinite(request.query.to(dtype))
        of_query = mark_nonfinite(score.project_query(query), bad_query)
        terms = to_kernel_arguments(request.replace(query=of_query, key=of_key, value=value))
        output = ADDITIVE(of_query, of_key, score.vector().to(dtype), value, terms=terms)
    return output.to(request.query.dtype)


def _reference(request: Request, score: MLPScore) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute attention in plain torch."""
    known = score.projected_keys
    problem = reference_attention.make_problem(
        lambda query, key: score.score_pairs(query, score.project_key(key) if known is None else known),
        request.query,
        request.key,
        request.value,
        request.terms,
        score.score_parameters,
    )
    return reference_attention.compute_output(problem, dropout=request.terms.dropout, dtype=request.query.dtype)


NATIVE = Implementation("native", _native, request_unsupported_reason, why_chosen="the fused kernel, made for this CPU")
REFERENCE = Implementation("reference", _reference, why_chosen="plain torch, on any device and for every bias")
