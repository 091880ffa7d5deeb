"""regard::find_buckets: the hash bucket of each token in each round, as a torch operator.

``mechanisms.locality_hash`` defines the buckets by sums in float64. The kernel decides nearly all tokens by float32
products with an error bound, and computes the sums of the others (``csrc/buckets/token_hash.h``), so the buckets are
the same for any instruction set and number of threads. It keeps no array of products. A bucket has no derivative.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.kernels.extension import native
from regard.kernels.operators.operator import Operator

MAX_COLUMNS = 2**16
"""Columns of rotations up to which the kernel multiplies them."""


def find_buckets(
    tokens: Float[Tensor, "batch heads length head_dim"],
    rotations: Float[Tensor, "heads rounds head_dim columns"],
    factors: Sequence[int],
) -> Int[Tensor, "batch heads length rounds"]:
    """Hash float32 tokens into a product of ``factors`` buckets; those with NaN or infinity get bucket 0."""
    tokens = tokens.detach()
    return FIND_BUCKETS.call((tokens, rotations), tokens, rotations, list(factors))


def _find_buckets(tokens: Tensor, rotations: Tensor, factors: Sequence[int]) -> Tensor:
    """Compute regard::find_buckets on a CPU."""
    buckets = _empty_buckets(tokens, rotations, factors)
    if not factors:
        return buckets.zero_()
    if buckets.numel():
        rows = tokens if tokens.stride(3) == 1 else tokens.contiguous()
        native.hash_tokens(
            rows, rotations, torch.tensor(factors, device="cpu"), buckets, threads=torch.get_num_threads()
        )
    return buckets


def _empty_buckets(tokens: Tensor, rotations: Tensor, factors: Sequence[int]) -> Tensor:
    """Allocate the result; also the fake kernel for tracing."""
    del factors
    return tokens.new_empty((*tokens.shape[:3], rotations.shape[1]), dtype=torch.long)


FIND_BUCKETS = Operator(
    "find_buckets",
    "(Tensor tokens, Tensor rotations, int[] factors) -> Tensor buckets",
    compute=_find_buckets,
    fake=_empty_buckets,
)
