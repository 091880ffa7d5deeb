"""impl "triton": attention with its statistics on a GPU, by kernels of regard's own in Triton.

They read the tile map of a mask, keep no queries x keys memory, and keep NaN and Inf of hidden tokens out: see
``kernels.tile_programs``. Where Triton interprets kernels (TRITON_INTERPRET=1 in the environment), they take tensors on
the CPU, too, as tests do.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch
from torch import Tensor

from regard.contract import Observation
from regard.kernels.hardware import Hardware
from regard.kernels.implementation import Backend, Implementation
from regard.kernels.optional_package import find_problem
from regard.kernels.request import Request, make_term_check
from regard.kernels.tile_programs.block_sizes import MAX_HEAD_BYTES
from regard.kernels.tracing import in_functorch, is_eager
from regard.positions.base import DistanceBias, PairBias

COMPUTED_TERMS = ("mask", "bias", "scale", "softcap", "sinks")
"""The terms that the kernels compute."""
_find_other_term = make_term_check(COMPUTED_TERMS)
_DEVICES = ("cuda", "xpu")
"""Types of devices for which Triton compiles; that of AMD's GPUs is "cuda" in torch."""
_MIN_CAPABILITY = (8, 0)
"""Least compute capability that Triton compiles for."""
_MIN_VERSION = (3, 7)
"""The oldest Triton that compiles the kernels, of torch 2.12; they were also tried with 3.8 and 3.9."""


def _unavailable_reason() -> str | None:
    """Return why there is no device, or no Triton, to compute with; None if there are both."""
    reason = find_problem("triton", minimum=_MIN_VERSION)
    if reason is not None:
        return reason
    if _is_interpreted() or any(torch.get_device_module(name).is_available() for name in _DEVICES):
        return None
    return "torch finds no GPU"


def _details() -> str:
    """Describe Triton's version, and where its kernels run."""
    version = importlib.import_module("triton").__version__
    return f"triton {version}, {'interpreted on the CPU' if _is_interpreted() else 'on a GPU'}; not measured yet"


def _is_interpreted() -> bool:
    """Whether Triton interprets kernels, on the CPU: it reads the environment when it is imported."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _refuses(request: Request) -> str | None:
    """Refuse other devices, other terms, float64, wide heads, biases that need the queries, and transforms of torch."""
    reason = _device_refusal(request.target)
    if reason is not None:
        return reason
    other = _find_other_term(request.terms)
    if other is not None:
        return f"the kernels in Triton have no {other}"
    if request.query.dtype == torch.float64:
        return "the kernels in Triton have no float64"
    sizes = request.query.shape[3], request.value.shape[3]
    limit = MAX_HEAD_BYTES // request.query.dtype.itemsize
    if max(sizes) > limit:
        return (
            f"triton takes a head_dim and value_dim of at most {limit} in {request.query.dtype}, and these are "
            f"{sizes[0]} and {sizes[1]}"
        )
    bias = request.bias
    if isinstance(bias, PairBias) and not isinstance(bias, DistanceBias):
        return f"triton takes a bias for each pair, and {type(bias).__name__} needs the queries or the weights"
    tensor = bias if isinstance(bias, Tensor) else None
    if in_functorch() or not is_eager(request.query, request.key, request.value, tensor, request.terms.sinks):
        return "the kernels in Triton are not traced by torch.compile, and have no torch.func"
    return None if request.hardware is not None else find_problem("triton", minimum=_MIN_VERSION)


def _device_refusal(target: Hardware) -> str | None:
    """Return why the kernels do not run on a device; None if they do."""
    if target.type == "cpu" and _is_interpreted():
        return None
    if target.type not in _DEVICES:
        return f"triton runs on a GPU, and the tensors are on {target}"
    if not target.has_triton:
        return "the package triton is not installed"
    if target.capability is not None and target.capability < _MIN_CAPABILITY:
        return f"triton compiles for GPUs from sm_80 on, and the tensors are on {target}"
    return None


def _observe(request: Request, top: int, rows: Tensor | None) -> Observation:
    """Compute attention and statistics with the kernels, which are imported with Triton when they are first used."""
    kernels: Any = importlib.import_module("regard.kernels.tile_programs.observe")
    observation: Observation = kernels.observe(request, top, rows)
    return observation


BACKEND = Backend("triton", _unavailable_reason, _details)
OBSERVE = Implementation(
    "triton", _observe, _refuses, why_chosen="regard's own kernels for a GPU, compiled but not yet measured on one"
)
