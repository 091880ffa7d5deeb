"""Raise RefusedError, in place of torch's error, for second derivatives of kernels that have only first ones.

``guard_second_derivative`` wraps a kernel's inputs. It is the identity; in a backward pass that is itself to be
differentiated, it marks gradients from the kernel for which torch has no derivative.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NoReturn, final

import torch
from torch import Tensor

from regard.errors import RefusedError
from regard.kernels.autograd_function import Function


def guard_second_derivative(impl: str, tensor: Tensor) -> Tensor:
    """Wrap an input of a kernel of ``impl``, so that a second derivative through it raises RefusedError."""
    if not (torch.is_grad_enabled() and tensor.requires_grad) or torch.compiler.is_compiling():
        return tensor
    result: Tensor = _KernelInput.apply(tensor, impl)
    return result


def refuse_create_graph(impl: str, tensor: Tensor) -> Tensor:
    """Wrap an input of a kernel whose gradients torch would take for constants in a second backward pass.

    A backward pass with create_graph=True raises RefusedError.
    """
    if not (torch.is_grad_enabled() and tensor.requires_grad):
        return tensor
    result: Tensor = _OnceDifferentiable.apply(tensor, impl)
    return result


class _Identity(Function):
    """Identity on a tensor, which keeps the name of an implementation for its backward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: Tensor, impl: str) -> Tensor:
        """Return a view of the tensor, since torch.func does not accept an input as output."""
        del impl
        return tensor.view_as(tensor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save the implementation's name for the error message."""
        del output
        _, ctx.impl = inputs

    @staticmethod
    @abstractmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Compute the gradient."""


@final
class _KernelInput(_Identity):
    """Identity on an input of the kernel, which checks its gradient from the kernel's backward pass."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the gradient; through ``_RefuseDerivative`` if torch has no derivative for it."""
        (gradient,) = gradients
        node = gradient.grad_fn if torch.is_grad_enabled() else None
        if node is None or type(node).__name__ != "NotImplemented":
            return gradient, None
        return _RefuseDerivative.apply(gradient, ctx.impl), None


@final
class _RefuseDerivative(_Identity):
    """Identity on a gradient that cannot be differentiated: its backward pass raises RefusedError."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> NoReturn:
        """Raise RefusedError: a second derivative has reached the kernel."""
        del gradients
        raise _no_second_derivative_error(ctx.impl)


@final
class _OnceDifferentiable(_Identity):
    """Identity on an input of the kernel, which refuses gradients that are to be differentiated."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the gradient, if no second derivative may follow."""
        if torch.is_grad_enabled():
            raise _no_second_derivative_error(ctx.impl)
        return gradients[0], None


def _no_second_derivative_error(impl: str) -> RefusedError:
    return RefusedError(
        f"impl {impl!r} has no second derivatives",
        expected="one backward pass through each call of attention",
        got="a backward pass through a backward pass (create_graph=True)",
        do='use impl="reference"',
    )
