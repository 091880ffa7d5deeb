"""What the native operators share: the extension, torch's library of operators, and when to go around it.

An operator can be traced, which ``torch.compile`` needs, but dispatching one from Python takes longer than a short call
computes. So where torch does nothing but compute (``untraced``) the kernels are called without it.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from regard.errors import OptionError
from regard.kernels.extension import missing, native, warn_once

LARGEST_HEAD = 256
"""Of head_dim and value_dim, what the kernels take at most."""

LIBRARY = torch.library.Library("regard", "FRAGMENT")
TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)  # kernels take any strides

__all__ = [
    "LARGEST_HEAD",
    "LIBRARY",
    "TAGS",
    "any_requires_grad",
    "check_isa",
    "differentiated_once",
    "is_portable",
    "missing",
    "native",
    "out_of_reach",
    "recalled",
    "remember",
    "stored_by_token",
    "transformed",
    "untraced",
    "untraced_backward",
    "wide",
]


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
    """Whether the kernels in use are those that any processor runs; not told to a compiler, which cannot ask."""
    return not torch.compiler.is_compiling() and native.isa() in ("portable", "neon")


def out_of_reach(*tensors: Tensor) -> str | None:
    """Why no kernel can be given these tensors, whatever it computes; None if one can.

    Raises OptionError where REGARD_ISA names an instruction set that does not run here. Warns, once, where tensors of a
    CPU have to do without kernels, or these with one thread.
    """
    on_cpu = tensors[0].is_cpu
    if on_cpu:
        warn_once()
    if missing is not None:
        return missing
    check_isa()
    if not on_cpu:
        return f"native runs on a CPU, and the tensors are on {tensors[0].device}"
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            return "native takes dense tensors, neither sparse nor nested"
    if transformed():
        return "torch.func and forward-mode derivatives cannot look into a kernel"
    return None


def remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keep inputs and outputs for the backward pass, which ``recalled`` gives back; as torch calls setup_context."""
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output, *(part if isinstance(part, Tensor) else None for part in inputs))
    ctx.numbers = tuple(None if isinstance(part, Tensor) else part for part in inputs)


def recalled(ctx: Any) -> tuple[tuple[Tensor, ...], list[Any]]:
    """The outputs and the inputs that ``remember`` kept."""
    saved = ctx.saved_tensors  # once: checkpointing unpacks no tensor a second time
    outputs = len(saved) - len(ctx.numbers)
    pairs = zip(saved[outputs:], ctx.numbers, strict=True)
    return saved[:outputs], [number if tensor is None else tensor for tensor, number in pairs]


def untraced(*tensors: Tensor | None) -> bool:
    """Whether torch does nothing but compute: no tracing, no modes, no torch.func, no subclasses of tensors."""
    if torch.compiler.is_compiling() or _in_functorch() or torch._C._is_tracing():
        return False
    if torch._C._len_torch_dispatch_stack() > 0:
        return False
    for tensor in tensors:  # noqa: SIM110  (a generator takes twice as long, and this is asked in every call)
        if tensor is not None and type(tensor) not in (Tensor, Parameter):
            return False
    return True


def untraced_backward(*tensors: Tensor | None) -> bool:
    """``untraced`` in a backward pass, for what gradients are computed from: they are neither to be differentiated
    again, nor several in one (``is_grads_batched``).
    """
    several = torch._C._functorch.is_legacy_batchedtensor
    return (
        not torch.is_grad_enabled()
        and untraced(*tensors)
        and not any(tensor is not None and several(tensor) for tensor in tensors)
    )


def transformed() -> bool:
    """Whether vmap, grad, jvp and their kind, or a level of forward-mode derivatives, are around the call."""
    return _in_functorch() or forward_ad._current_level >= 0


def differentiated_once() -> bool:
    """Whether one ``grad``, ``vjp`` or ``jacrev`` of torch.func is around the call, and nothing else is."""
    if torch.compiler.is_compiling() or forward_ad._current_level >= 0:
        return False
    levels = torch._C._functorch.get_interpreter_stack() or []
    return [level.key() for level in levels] == [torch._C._functorch.TransformType.Grad]


def _in_functorch() -> bool:
    """Whether a transform of torch.func is around the call; asked in a way that ``torch.compile`` can trace."""
    return isinstance(torch._C._functorch.peek_interpreter_stack(), torch._C._functorch.CInterpreter)


def any_requires_grad(*tensors: Tensor | None) -> bool:
    """Whether autograd has to know of the call."""
    if not torch.is_grad_enabled():
        return False
    for tensor in tensors:  # noqa: SIM110  (as in untraced)
        if tensor is not None and tensor.requires_grad:
            return True
    return False


def stored_by_token(like: Tensor, length: int, width: int) -> Tensor:
    """An empty tensor (batch, heads, length, width), batch, heads and dtype as in ``like``.

    It is stored as (batch, length, heads, width): joining the heads again, as every layer does, then copies nothing.
    """
    batch, heads, _, _ = like.shape
    return like.new_empty_strided((batch, heads, length, width), (length * heads * width, width, heads * width, 1))


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums are taken in, and that lse, tables and the gradients of biases have."""
    return torch.float64 if dtype == torch.float64 else torch.float32
