"""regard::cross_entropy and regard::cross_entropy_backward, the native kernels as torch operators.

    loss = (1 - smoothing) (lse - x_t) + smoothing (lse - mean_v x_v),    lse = ln sum_v exp x_v

Adding a number to all logits of a row changes neither its loss nor its gradients, however large it is: lse is stored as
two numbers, the largest logit and the logarithm of the rest, ``normalizer`` (rows, 2).

Szegedy et al. 2016, "Rethinking the Inception architecture", section 7. logits x (rows, classes), targets t (rows) ->
loss (rows), in float32, or float64 for float64. Half precision is converted as it is read, and the only array of the
size of the logits that is allocated is their gradient. There is no second derivative.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from regard.kernels.extension import native
from regard.kernels.operators.operator import Operator, refuse_second_derivative
from regard.kernels.results import accumulation_dtype
from regard.kernels.support import is_portable, unsupported_reason

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def cross_entropy(
    logits: Float[Tensor, "rows classes"], targets: Int[Tensor, " rows"], *, smoothing: float, ignored: int
) -> Float[Tensor, " rows"]:
    """Compute the cross-entropy loss of each row; 0, with a gradient of 0, if the target is ``ignored``.

    An ignored row may contain any values, even NaN. The native kernel computes it if it is faster: on a CPU with AVX2
    or better, for tensors that are not a subclass. Otherwise torch does. For any other target that is not a class the
    kernel raises ValueError, and torch IndexError.
    """
    plain = logits.dtype in _DTYPES and type(logits) is type(targets) is Tensor
    if not plain or unsupported_reason(logits, targets) is not None or is_portable() or logits.shape[1] == 0:
        return _torch_cross_entropy(logits, targets, smoothing, ignored)
    arguments = logits, targets.long(), smoothing, ignored
    return CROSS_ENTROPY.call((logits, targets), *arguments)[0]


def _torch_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float, ignored: int) -> Tensor:
    return functional.cross_entropy(
        logits.to(accumulation_dtype(logits.dtype)).masked_fill(
            (targets == ignored)[:, None], 0.0
        ),  # NaN times 0 would be NaN
        targets.long(),
        label_smoothing=smoothing,
        ignore_index=ignored,
        reduction="none",
    )


def _cross_entropy(logits: Tensor, targets: Tensor, smoothing: float, ignored: int) -> tuple[Tensor, Tensor]:
    """Compute regard::cross_entropy on a CPU."""
    loss, normalizer = _empty_losses(logits)
    native.cross_entropy(
        logits.contiguous(),
        targets.contiguous(),
        loss,
        normalizer,
        smoothing=smoothing,
        ignored=ignored,
        threads=torch.get_num_threads(),
    )
    return loss, normalizer


def _empty_losses(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Allocate the losses and the normalizer."""
    rows, dtype = logits.shape[0], accumulation_dtype(logits.dtype)
    return logits.new_empty(rows, dtype=dtype), logits.new_empty(rows, 2, dtype=dtype)


def _cross_entropy_backward(
    grad_loss: Tensor, logits: Tensor, targets: Tensor, normalizer: Tensor, smoothing: float, ignored: int
) -> Tensor:
    """Compute regard::cross_entropy_backward on a CPU."""
    gradient = _empty_gradient(logits)
    native.cross_entropy_backward(
        grad_loss.contiguous(),
        logits.contiguous(),
        targets.contiguous(),
        normalizer.contiguous(),
        gradient,
        smoothing=smoothing,
        ignored=ignored,
        threads=torch.get_num_threads(),
    )
    return gradient


def _empty_gradient(logits: Tensor) -> Tensor:
    """Allocate the gradient of the logits."""
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """Save the tensors and options that the gradient is computed from."""
    logits, targets, ctx.smoothing, ctx.ignored = inputs
    ctx.save_for_backward(logits, targets, output[1])


def _differentiate(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
    """Compute the gradient of the logits."""
    inputs = (gradients[0], *ctx.saved_tensors, ctx.smoothing, ctx.ignored)
    return CROSS_ENTROPY_BACKWARD.call_backward(gradients[:1], *inputs), None, None, None


CROSS_ENTROPY_BACKWARD = Operator(
    "cross_entropy_backward",
    "(Tensor grad_loss, Tensor logits, Tensor targets, Tensor normalizer, float smoothing, SymInt ignored) -> Tensor",
    compute=_cross_entropy_backward,
    fake=lambda grad_loss, logits, *_: _empty_gradient(logits),
    differentiate=refuse_second_derivative,
    vmap=True,
)
CROSS_ENTROPY = Operator(
    "cross_entropy",
    "(Tensor logits, Tensor targets, float smoothing, SymInt ignored) -> (Tensor loss, Tensor normalizer)",
    compute=_cross_entropy,
    fake=lambda logits, *_: _empty_losses(logits),
    save=_save,
    differentiate=_differentiate,
    non_differentiable=(1,),
)
