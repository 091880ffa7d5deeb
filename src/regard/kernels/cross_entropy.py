"""regard::cross_entropy, the native kernel as a torch operator.

    loss = (1 - smoothing) (lse - x_t) + smoothing (lse - mean_v x_v),    lse = ln sum_v exp x_v

A number added to all logits of a row changes neither its loss nor its gradients, however large: lse is kept as two
numbers, the largest logit and the logarithm of the rest, ``normalizer`` (rows, 2).

Szegedy et al. 2016, "Rethinking the Inception architecture", section 7. logits x (rows, classes), targets t (rows) ->
loss (rows), in float32, or float64 for float64. Half precision is widened as it is read, and no other array of the size
of the logits is made but their gradient. There is no second derivative.
"""

from __future__ import annotations

from typing import Any, NoReturn, cast, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from regard.errors import RefusedError
from regard.kernels.batching import batch_by_turns
from regard.kernels.library import LIBRARY, TAGS, is_portable, native, out_of_reach, untraced, untraced_backward, wide

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

LIBRARY.define(
    "cross_entropy(Tensor logits, Tensor targets, float smoothing, SymInt ignored) -> (Tensor loss, Tensor normalizer)",
    tags=TAGS,
)
LIBRARY.define(
    "cross_entropy_backward(Tensor grad_loss, Tensor logits, Tensor targets, Tensor normalizer, float smoothing, "
    "SymInt ignored) -> Tensor",
    tags=TAGS,
)


def cross_entropy(
    logits: Float[Tensor, "rows classes"], targets: Int[Tensor, " rows"], *, smoothing: float, ignored: int
) -> Float[Tensor, " rows"]:
    """The loss of each row; 0, with a gradient of 0, where the target is ``ignored``.

    An ignored row may hold anything, NaN included. By the native kernel where it is the faster: on a CPU with AVX2 or
    more, for tensors that are no subclass. Elsewhere by torch. For another target that is no class the kernel raises
    ValueError, and torch IndexError.
    """
    plain = logits.dtype in _DTYPES and type(logits) is type(targets) is Tensor
    if not plain or out_of_reach(logits, targets) is not None or is_portable() or logits.shape[1] == 0:
        return _by_torch(logits, targets, smoothing, ignored)
    given = logits, targets.long(), smoothing, ignored
    if untraced(logits, targets):
        return cast(Tensor, _CrossEntropy.apply(*given)[0])  # type: ignore[no-untyped-call]
    return cast(Tensor, torch.ops.regard.cross_entropy.default(*given)[0])


def _by_torch(logits: Tensor, targets: Tensor, smoothing: float, ignored: int) -> Tensor:
    return functional.cross_entropy(
        logits.to(wide(logits.dtype)).masked_fill((targets == ignored)[:, None], 0.0),  # NaN times 0 would be NaN
        targets.long(),
        label_smoothing=smoothing,
        ignore_index=ignored,
        reduction="none",
    )


@final
class _CrossEntropy(torch.autograd.Function):
    """The short way, differentiable."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        """The loss, and the normalizer."""
        results = _cross_entropy(*given)
        _remember(ctx, given, results)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """A gradient for each input."""
        return _differentiate(ctx, *gradients)


def _cross_entropy(logits: Tensor, targets: Tensor, smoothing: float, ignored: int) -> tuple[Tensor, Tensor]:
    """regard::cross_entropy on a CPU."""
    loss, normalizer = _losses(logits, targets, smoothing, ignored)
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


def _losses(logits: Tensor, targets: Tensor, smoothing: float, ignored: int) -> tuple[Tensor, Tensor]:
    """The losses and the normalizer, yet to be filled."""
    del targets, smoothing, ignored
    rows, dtype = logits.shape[0], wide(logits.dtype)
    return logits.new_empty(rows, dtype=dtype), logits.new_empty(rows, 2, dtype=dtype)


def _cross_entropy_backward(
    grad_loss: Tensor, logits: Tensor, targets: Tensor, normalizer: Tensor, smoothing: float, ignored: int
) -> Tensor:
    """regard::cross_entropy_backward on a CPU."""
    gradient = _gradient(grad_loss, logits, targets, normalizer, smoothing, ignored)
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


def _gradient(
    grad_loss: Tensor, logits: Tensor, targets: Tensor, normalizer: Tensor, smoothing: float, ignored: int
) -> Tensor:
    """The gradient of the logits, yet to be filled."""
    del grad_loss, targets, normalizer, smoothing, ignored
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """Keep what the gradient is computed from."""
    logits, targets, ctx.smoothing, ctx.ignored = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(logits, targets, output[1])


def _differentiate(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
    """A gradient for the logits."""
    grad_loss, saved = gradients[0], ctx.saved_tensors
    short = untraced_backward(grad_loss)
    backward: Any = _cross_entropy_backward if short else torch.ops.regard.cross_entropy_backward.default
    return backward(grad_loss, *saved, ctx.smoothing, ctx.ignored), None, None, None


def _differentiate_again(ctx: Any, *gradients: Tensor) -> NoReturn:
    """There is no second derivative."""
    del ctx, gradients
    raise RefusedError(
        "this cross-entropy has no second derivatives",
        expected="one backward pass",
        got="a backward pass through a backward pass (create_graph=True)",
        do="use torch.nn.functional.cross_entropy",
    )


LIBRARY.impl("cross_entropy", _cross_entropy, "CPU")
LIBRARY.impl("cross_entropy_backward", _cross_entropy_backward, "CPU")
torch.library.register_fake("regard::cross_entropy", _losses, lib=LIBRARY)
torch.library.register_fake("regard::cross_entropy_backward", _gradient, lib=LIBRARY)
torch.library.register_autograd("regard::cross_entropy", _differentiate, setup_context=_remember, lib=LIBRARY)
torch.library.register_autograd("regard::cross_entropy_backward", _differentiate_again, lib=LIBRARY)
batch_by_turns("cross_entropy_backward")
