"""``Operator``: a torch operator regard::NAME from its parts: schema, kernel, fake kernel, derivative.

``torch.compile`` keeps its graph whole if a kernel is an operator. In eager mode the kernel is called without the
dispatcher: with gradients through ``compute_with_grad``, an autograd function of the same parts, and without as a plain
function. All ways share every function below, so they return the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NoReturn, TypeVar, final

import torch
from torch import Tensor

from regard.errors import RefusedError
from regard.kernels.tracing import any_requires_grad, is_eager, is_eager_backward

_LIBRARY = torch.library.Library("regard", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)  # kernels take any strides


Returned = TypeVar("Returned")


@final
class Operator(Generic[Returned]):
    """The torch operator regard::``name``.

    Args:
        schema: its arguments and results, as torch.library.Library.define takes them after the name.
        compute: the kernel, on a CPU.
        fake: returns results with the shapes and dtypes of ``compute``, for tracing (torch.library.register_fake).
        save: ``(ctx, inputs, output)``: saves what the derivative needs, as ``setup_context`` of torch.
        differentiate: ``(ctx, *gradients)`` -> the gradient of each input, None for those without one. None if the
            operator has no derivative.
        non_differentiable: indices of the results without a gradient.
        num_returned: how many of the results ``compute_with_grad`` returns; None is all. The others are for ``save``.
        vmap: whether calls under ``torch.func.vmap`` are supported, as for batched backward passes. The kernels have
            no additional batch dimension, so there is one call per element.
    """

    def __init__(
        self,
        name: str,
        schema: str,
        *,
        compute: Callable[..., Returned],
        fake: Callable[..., Any],
        save: Callable[..., None] | None = None,
        differentiate: Callable[..., Any] | None = None,
        non_differentiable: Sequence[int] = (),
        num_returned: int | None = None,
        vmap: bool = False,
    ) -> None:
        _LIBRARY.define(name + schema, tags=_TAGS)
        _LIBRARY.impl(name, compute, "CPU")
        torch.library.register_fake(f"regard::{name}", fake, lib=_LIBRARY)
        if differentiate is not None:
            torch.library.register_autograd(f"regard::{name}", differentiate, setup_context=save, lib=_LIBRARY)
        self.torch_op: Callable[..., Returned] = getattr(torch.ops.regard, name).default
        """The operator itself, for tracing."""
        self.compute = compute
        """The kernel, called directly, without gradients."""
        self._has_derivative = save is not None and differentiate is not None
        if save is not None and differentiate is not None:
            self.compute_with_grad: Callable[..., Returned] = _make_autograd_function(
                compute, save, differentiate, non_differentiable, num_returned
            ).apply
            """The kernel, called directly, with gradients."""
        if vmap:
            _register_vmap(name, self.torch_op)

    def call(self, tensors: Sequence[Tensor | None], *inputs: Any) -> Returned:
        """Compute through the torch operator if torch is tracing, else by the kernel, with gradients if need be.

        ``tensors`` are those of the inputs that may be traced, or have gradients.
        """
        if not is_eager(*tensors):
            return self.torch_op(*inputs)
        if self._has_derivative and any_requires_grad(*tensors):
            return self.compute_with_grad(*inputs)
        return self.compute(*inputs)

    def call_backward(self, tensors: Sequence[Tensor | None], *inputs: Any) -> Returned:
        """Compute in a backward pass, by calling the kernel unless gradients are differentiated again or batched."""
        return self.compute(*inputs) if is_eager_backward(*tensors) else self.torch_op(*inputs)


def save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Save inputs and outputs for the backward pass, to be read by ``load_saved``."""
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output, *(part if isinstance(part, Tensor) else None for part in inputs))
    ctx.non_tensors = tuple(None if isinstance(part, Tensor) else part for part in inputs)


def load_saved(ctx: Any) -> tuple[tuple[Tensor, ...], list[Any]]:
    """Load the outputs and the inputs that ``save_for_backward`` saved."""
    saved = ctx.saved_tensors  # read once: checkpointing does not unpack a tensor a second time
    outputs = len(saved) - len(ctx.non_tensors)
    pairs = zip(saved[outputs:], ctx.non_tensors, strict=True)
    return saved[:outputs], [number if tensor is None else tensor for tensor, number in pairs]


def refuse_second_derivative(ctx: Any, *gradients: Tensor | None) -> NoReturn:
    """Raise RefusedError: the derivative of a backward operator is not supported."""
    del ctx, gradients
    raise RefusedError(
        'impl "native" has no second derivatives',
        expected="one backward pass through each call",
        got="a backward pass through a backward pass (create_graph=True)",
        do='use impl="reference" (in a layer mechanism_options={"impl": "reference"}), or torch.func, such as '
        "torch.func.hessian, for both derivatives; for a cross-entropy use torch.nn.functional.cross_entropy",
    )


def _make_autograd_function(
    compute: Callable[..., Any],
    save: Callable[..., None],
    differentiate: Callable[..., Any],
    non_differentiable: Sequence[int],
    num_returned: int | None,
) -> type[torch.autograd.Function]:
    """Make the autograd function of an operator from its parts."""

    @final
    class Differentiable(torch.autograd.Function):
        """The operator with gradients, without the dispatcher."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            """Compute the results, and save what the backward pass needs."""
            results = compute(*inputs)
            if non_differentiable:
                ctx.mark_non_differentiable(*(results[index] for index in non_differentiable))
            save(ctx, inputs, results)
            return results if num_returned is None else results[:num_returned]

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> Any:
            """Compute the gradient of each input."""
            return differentiate(ctx, *gradients)

    return Differentiable


def _register_vmap(name: str, operator: Callable[..., Any]) -> None:
    """Register a vmap rule for an operator with one or several result tensors: one call per element."""

    def one_by_one(info: Any, dims: Sequence[int | None], *inputs: Any) -> tuple[Any, Any]:
        calls = [
            operator(*(part if dim is None else part.select(dim, turn) for part, dim in zip(inputs, dims, strict=True)))
            for turn in range(info.batch_size)
        ]
        if isinstance(calls[0], Tensor):
            return torch.stack(calls), 0
        return tuple(torch.stack(parts) for parts in zip(*calls, strict=True)), (0,) * len(calls[0])

    torch.library.register_vmap(f"regard::{name}", one_by_one, lib=_LIBRARY)
