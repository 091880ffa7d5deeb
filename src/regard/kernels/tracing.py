"""Whether torch does nothing but compute: no compiler, no modes, no torch.func.

An operator can be traced, which ``torch.compile`` needs, but dispatching one from Python takes longer than a short call
computes. So where torch is eager the kernels are called without the dispatcher.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter


def is_eager(*tensors: Tensor | None) -> bool:
    """Whether torch does nothing but compute: no tracing, no modes, no torch.func, no subclasses of tensors."""
    if torch.compiler.is_compiling() or _has_transform() or torch._C._is_tracing():
        return False
    if torch._C._len_torch_dispatch_stack() > 0:
        return False
    for tensor in tensors:  # noqa: SIM110  (a generator takes twice as long, and this is asked in every call)
        if tensor is not None and type(tensor) not in (Tensor, Parameter):
            return False
    return True


def is_eager_backward(*tensors: Tensor | None) -> bool:
    """``is_eager`` in a backward pass, for what gradients are computed from: they are neither to be differentiated
    again, nor several in one (``is_grads_batched``).
    """
    is_batched = torch._C._functorch.is_legacy_batchedtensor
    return (
        not torch.is_grad_enabled()
        and is_eager(*tensors)
        and not any(tensor is not None and is_batched(tensor) for tensor in tensors)
    )


def in_functorch() -> bool:
    """Whether vmap, grad, jvp and their kind, or a level of forward-mode derivatives, are around the call."""
    return _has_transform() or forward_ad._current_level >= 0


def in_single_grad_transform() -> bool:
    """Whether one ``grad``, ``vjp`` or ``jacrev`` of torch.func is around the call, and nothing else is."""
    if torch.compiler.is_compiling() or forward_ad._current_level >= 0:
        return False
    levels = torch._C._functorch.get_interpreter_stack() or []
    return [level.key() for level in levels] == [torch._C._functorch.TransformType.Grad]


def any_requires_grad(*tensors: Tensor | None) -> bool:
    """Whether autograd has to know of the call."""
    if not torch.is_grad_enabled():
        return False
    for tensor in tensors:  # noqa: SIM110  (as in is_eager)
        if tensor is not None and tensor.requires_grad:
            return True
    return False


def _has_transform() -> bool:
    """Whether a transform of torch.func is around the call; asked in a way that ``torch.compile`` can trace."""
    return isinstance(torch._C._functorch.peek_interpreter_stack(), torch._C._functorch.CInterpreter)
