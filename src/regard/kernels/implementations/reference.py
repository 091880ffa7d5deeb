"""impl "reference": scaled dot-product attention in plain torch, on any device.

    Attention(Q, K, V) = softmax(Q K^T / sqrt(d)) V            Vaswani et al. 2017, equation 1

Attention materialises the weights, and statistics process queries in tiles; no request is refused. With terms
that "sdpa" lacks, such as a softcap, attention processes queries in tiles too: on a GPU, "auto" picks nothing else.
"""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from regard.contract import Observation
from regard.kernels.describe_bytes import describe_bytes
from regard.kernels.implementation import Backend, Implementation
from regard.kernels.implementations import sdpa
from regard.kernels.reference import attention as reference_attention
from regard.kernels.reference import observe as reference_observe
from regard.kernels.reference.query_tiles import compute_in_tiles
from regard.kernels.request import Request
from regard.kernels.results import accumulation_dtype
from regard.tensors import is_traced


def _details() -> str:
    """Describe torch's version; operations are not fused."""
    return f"torch {torch.__version__}, one operation after another"


def _attention(request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute equation 1, with all weights in memory, or the weights of a tile."""
    problem = reference_attention.make_dot_product_problem(request)
    terms = request.terms
    compute = partial(reference_attention.compute_output, problem, dropout=terms.dropout, dtype=request.query.dtype)
    if not _is_tiled(request):
        return compute()
    return compute_in_tiles(problem, lambda rows: compute(rows=rows), is_random=terms.dropout > 0.0)


def _is_tiled(request: Request) -> bool:
    """Whether a few queries are computed at a time."""
    # The number of tiles depends on lengths, which a trace does not fix.
    return sdpa.find_other_term(request.terms) is not None and not is_traced()


def _observe(request: Request, top: int, rows: Tensor | None) -> Observation:
    """Compute equation 1 and its statistics, in memory linear in length."""
    problem = reference_attention.make_dot_product_problem(request)
    return reference_observe.observe(problem, top=top, rows=rows, dtype=request.query.dtype)


def _auto_defers(request: Request) -> str | None:
    if request.device_type == "cpu" or request.has_few_cells:
        return None
    if _is_tiled(request):
        return "it computes a few queries at a time, one operation after another"
    return f"it holds the weights of all queries and keys, {_describe_weights(request)}"


def _why_chosen(request: Request) -> str:
    if _is_tiled(request):
        return "exact for every mask and bias, a few queries at a time"
    return f"exact for every mask and bias, at the price of holding the weights, {_describe_weights(request)}"


def _describe_weights(request: Request) -> str:
    (batch, heads, queries, _), keys = request.query.shape, request.frame.keys
    return describe_bytes(batch * heads * queries * keys * accumulation_dtype(request.query.dtype).itemsize)


BACKEND = Backend("reference", unavailable_reason=lambda: None, details=_details)
ATTENTION = Implementation(
    "reference",
    _attention,
    why_chosen=_why_chosen,
    auto_defers=_auto_defers,
)
OBSERVE = Implementation(
    "reference", _observe, why_chosen="plain torch on any device, in tiles of queries, any number of derivatives"
)
