"""What the compiled kernels can be given on this machine, whatever they compute."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from regard.errors import OptionError
from regard.kernels.extension import missing_reason, native, warn_once
from regard.kernels.tracing import in_functorch

MAX_HEAD_DIM = 256
"""Of head_dim and value_dim, what the kernels take at most."""


def check_isa() -> None:
    """Raise OptionError where the environment variable REGARD_ISA names an instruction set that does not run here."""
    if torch.compiler.is_compiling():
        return
    try:
        native.isa()
    except ValueError as error:
        raise OptionError(
            "REGARD_ISA names an instruction set that does not run here",
            expected="one of " + ", ".join(native.isas()),
            got=repr(os.environ.get("REGARD_ISA")),
            do="unset it, and the best one is taken",
        ) from error


def is_portable() -> bool:
    """Whether the kernels in use are those that any processor runs; always False under torch.compile."""
    return not torch.compiler.is_compiling() and native.isa() in ("portable", "neon")


def unsupported_reason(*tensors: Tensor) -> str | None:
    """Why no kernel can be given these tensors, whatever it computes; None if one can.

    Raises OptionError where REGARD_ISA names an instruction set that does not run here. Warns, once, where tensors of a
    CPU have to do without kernels, or these with one thread.
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
        return "torch.func and forward-mode derivatives cannot look into a kernel"
    return None
