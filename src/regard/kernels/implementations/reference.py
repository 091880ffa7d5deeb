"""impl "reference": scaled dot-product attention in plain torch, on any device.

    Attention(Q, K, V) = softmax(Q K^T / sqrt(d)) V            Vaswani et al. 2017, equation 1

Attention materialises the weights, and statistics process queries in tiles; no request is refused.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from regard.contract import Observation
from regard.kernels.implementation import Backend, Implementation
from regard.kernels.reference import attention as reference_attention
from regard.kernels.reference import observe as reference_observe
from regard.kernels.request import Request


def _details() -> str:
    """Describe torch's version; operations are not fused."""
    return f"torch {torch.__version__}, one operation after another"


def _attention(request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute equation 1, with all weights in memory."""
    problem = reference_attention.make_dot_product_problem(request)
    return reference_attention.compute_output(problem, dropout=request.dropout, dtype=request.query.dtype)


def _observe(request: Request, top: int, rows: Tensor | None) -> Observation:
    """Compute equation 1 and its statistics, in memory linear in length."""
    problem = reference_attention.make_dot_product_problem(request)
    return reference_observe.observe(problem, top=top, rows=rows, dtype=request.query.dtype)


BACKEND = Backend("reference", unavailable_reason=lambda: None, details=_details)
ATTENTION = Implementation(
    "reference", _attention, merit="exact for every mask and bias, at the price of holding the weights"
)
OBSERVE = Implementation("reference", _observe)
