"""Which tensors the compiled kernels support on this machine, independent of the operation."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from regard.errors import OptionError
from regard.kernels.extension import missing_reason, native, warn_once
from regard.kernels.tracing import in_functorch, is_exported_to_onnx

MAX_HEAD_DIM = 640
"""Largest head_dim and value_dim that the kernels support."""


def check_isa() -> None:
    """Raise OptionError if the environment variable REGARD_ISA names an instruction set that does not run here."""
    if torch.compiler.is_compiling():
        return
    try:
        native.isa()
    except ValueError as error:
        raise OptionError(
            "REGARD_ISA names an instruction set that does not run here",
            expected="one of " + ", ".join(native.isas()),
            got=repr(os.environ.get("REGARD_ISA")),
            do="unset it to use the best one",
        ) from error


def is_portable() -> bool:
    """Whether the portable kernels are in use ("neon" included), not AVX2 or better; False under torch.compile."""
    return not torch.compiler.is_compiling() and native.isa() in ("portable", "neon")


def unsupported_reason(*tensors: Tensor) -> str | None:
    """Return why no kernel, whatever its operation, supports these tensors; None if kernels support them.

    Raises OptionError if REGARD_ISA names an instruction set that does not run here. Warns once for CPU tensors if the
    kernels are missing or can use one thread only.
    """
    on_cpu = tensors[0].is_cpu
    if on_cpu:
        warn_once()
    if missing_reason is not None:
        return missing_reason
    check_isa()
    if not on_cpu:
        return f"native runs on a CPU, and the tensors are on {tensors[0].device}"
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            return "native takes dense tensors, neither sparse nor nested"
    if in_functorch():
        return "native does not support torch.func or forward-mode derivatives"
    if is_exported_to_onnx():
        return "ONNX has none of regard's kernels: a graph for it consists of operations of torch"
    return None
