"""impl "native": regard's own kernels in C++, for CPUs, forward and backward.

One binary holds the kernels for several instruction sets, and takes the best that runs. The environment variable
``REGARD_ISA`` names another one: "avx512_bf16", "avx512", "avx2" or "portable". Threads are torch's.
"""

from __future__ import annotations

from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.contract import Observation
from regard.kernels import library, observing, ops
from regard.kernels.implementation import Implementation
from regard.kernels.request import Request
from regard.kernels.terms import terms_of
from regard.positions.base import DistanceBias, PairBias

_LARGEST = 256  # head_dim and value_dim


@final
class Native(Implementation):
    """The C++ kernels."""

    name: ClassVar[str] = "native"

    def refuses(self, request: Request) -> str | None:
        """Other devices, heads wider than 256, position terms that need the query or the weights, torch.func.

        Raises OptionError where REGARD_ISA names an instruction set that does not run here.
        """
        query, value = request.query, request.value
        if query.is_cpu and (query.shape[3] > _LARGEST or value.shape[3] > _LARGEST):
            sizes = f"{query.shape[3]} and {value.shape[3]}"
            return f"native takes a head_dim and value_dim of at most {_LARGEST}, and these are {sizes}"
        return out_of_reach(request)

    def attention(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """One call of the kernel."""
        return ops.attend(request.query, request.key, request.value, terms_of(request))

    def refuses_to_observe(self, request: Request) -> str | None:
        """What it refuses to compute."""
        return self.refuses(request)

    def observe(self, request: Request, top: int, rows: Tensor | None) -> Observation:
        """One call of the kernel, and a second pass inside for what keys received."""
        return observing.observe(request.query, request.key, request.value, top, rows, terms_of(request))


def out_of_reach(request: Request) -> str | None:
    """Why no native kernel, whatever its score and sizes, can compute this request; None if one can."""
    if library.missing is not None:
        return f"its extension was not built ({library.missing})"
    library.check_isa()
    query, value, bias = request.query, request.value, request.bias
    if not query.is_cpu:
        return f"native runs on a CPU, and the tensors are on {query.device}"
    if isinstance(bias, PairBias) and not isinstance(bias, DistanceBias):
        return f"native takes a bias of the pair, and {type(bias).__name__} needs the queries or the weights"
    if not all(tensor.layout is torch.strided for tensor in (query, request.key, value)):
        return "native takes dense tensors, neither sparse nor nested"
    if library.transformed():
        return "torch.func and forward-mode derivatives cannot look into a kernel"
    return None
