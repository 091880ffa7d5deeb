"""Whether torch runs eagerly: no compiler, no dispatch modes, no torch.func.

``torch.compile`` needs operators that it can trace, but dispatching one from Python takes longer than a short call
computes. So in eager mode the kernels are called without the dispatcher.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter


def is_eager(*tensors: Tensor | None) -> bool:
    """Whether torch runs eagerly on these tensors: no tracing, dispatch modes, torch.func or tensor subclasses."""
    if torch.compiler.is_compiling() or torch._C._is_tracing():
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None or torch._C._len_torch_dispatch_stack() > 0:
        return False
    for tensor in tensors:  # a generator takes twice as long, and every call runs this
        kind = type(tensor)
        if kind is not Tensor and kind is not Parameter and tensor is not None:
            return False
    return True


def is_exported_to_onnx() -> bool:
    """Whether the call is traced by ``torch.onnx.export``."""
    return (torch.compiler.is_compiling() or torch._C._is_tracing()) and _is_in_onnx_export()


def _is_in_onnx_export() -> bool:
    return torch.onnx.is_in_onnx_export()


# A trace runs this function and keeps its result: dynamo would take torch's own for False. The mark is that of
# ``torch.compiler.assume_constant_result``, which imports dynamo: a second of every start.
_is_in_onnx_export._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_plain_call(*tensors: Tensor | None) -> bool:
    """Whether torch runs eagerly on these tensors, without forward-mode derivatives and without autocast on the CPU."""
    return is_eager(*tensors) and forward_ad._current_level < 0 and not torch.is_autocast_enabled("cpu")


def is_eager_backward(*tensors: Tensor | None) -> bool:
    """Whether a backward pass runs eagerly on these tensors: as ``is_eager``, and the gradients are neither to be
    differentiated again nor batched (``is_grads_batched``).
    """
    is_batched = torch._C._functorch.is_legacy_batchedtensor
    return (
        not torch.is_grad_enabled()
        and is_eager(*tensors)
        and not any(tensor is not None and is_batched(tensor) for tensor in tensors)
    )


def in_functorch() -> bool:
    """Whether the call is inside a transform of torch.func (vmap, grad, jvp, ...) or forward-mode differentiation."""
    return _has_transform() or forward_ad._current_level >= 0


def in_single_grad_transform() -> bool:
    """Whether the call is inside exactly one ``grad``, ``vjp`` or ``jacrev`` of torch.func, and no other transform."""
    if torch.compiler.is_compiling() or forward_ad._current_level >= 0:
        return False
    levels = torch._C._functorch.get_interpreter_stack() or []
    return [level.key() for level in levels] == [torch._C._functorch.TransformType.Grad]


def any_requires_grad(*tensors: Tensor | None) -> bool:
    """Whether gradients are enabled and any tensor requires grad, so that autograd must record the call."""
    if not torch.is_grad_enabled():
        return False
    for tensor in tensors:  # noqa: SIM110  (as in is_eager)
        if tensor is not None and tensor.requires_grad:
            return True
    return False


def _has_transform() -> bool:
    """Whether the call is inside a transform of torch.func; written such that ``torch.compile`` can trace it."""
    return isinstance(torch._C._functorch.peek_interpreter_stack(), torch._C._functorch.CInterpreter)
