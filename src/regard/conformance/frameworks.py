"""How functions of each framework are called: arrays of NumPy in, arrays of NumPy and gradients out."""

from __future__ import annotations

import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any, final

import numpy as np

from regard.errors import MissingPackageError, check_choice

Arguments = Mapping[str, Any]


@final
@dataclass(frozen=True)
class Returned:
    """The arrays that a function returned, in float64, and gradients by the name of the argument.

    A gradient of None was not computed. ``backward_error`` is the message of a backward pass that failed.
    """

    outputs: tuple[np.ndarray, ...]
    gradients: Mapping[str, np.ndarray | None] = field(default_factory=dict)
    backward_error: str = ""
    changed: tuple[str, ...] = ()


class Framework(ABC):
    """A framework of arrays."""

    name: str
    dtypes: tuple[str, ...]
    """The dtypes that its arrays have."""

    @abstractmethod
    def call(
        self,
        function: Callable[..., Any],
        arguments: Arguments,
        dtype: str,
        upstream: np.ndarray,
        inputs: Sequence[str],
    ) -> Returned:
        """Call a function, with arrays of floats in the dtype, and differentiate it in ``inputs``.

        ``upstream`` is the gradient of the first output; one of another shape is not differentiated.
        """


def _to_float64(arrays: Sequence[Any]) -> tuple[np.ndarray, ...]:
    return tuple(
        np.asarray(array, dtype=np.float64) for array in arrays if array is not None and hasattr(array, "shape")
    )


def _as_tuple(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, tuple | list) else (result,)


@final
class NumpyFramework(Framework):
    """Functions of NumPy arrays; gradients come from a function of their own, if there is one.

    ``backward(upstream, query, key, value, ...)`` takes the arguments of the function by name, and returns the
    gradients by the names of its arguments.
    """

    name, dtypes = "numpy", ("float32", "float64")

    def __init__(self, backward: Callable[..., Mapping[str, Any]] | None = None) -> None:
        self._backward = backward

    def call(
        self,
        function: Callable[..., Any],
        arguments: Arguments,
        dtype: str,
        upstream: np.ndarray,
        inputs: Sequence[str],
    ) -> Returned:
        """Call the function, and then its backward pass."""
        arrays = {name: _to_dtype(value, dtype) for name, value in arguments.items()}
        before = {name: value.copy() for name, value in arrays.items() if isinstance(value, np.ndarray)}
        gradients: dict[str, np.ndarray | None] = {}
        with np.errstate(all="ignore"):  # numbers behind a mask overflow on purpose
            outputs = _to_float64(_as_tuple(function(**arrays)))
            if self._backward is not None and inputs:
                found = self._backward(upstream.astype(dtype), **arrays)
                gradients = {
                    name: None if found.get(name) is None else _to_float64([found[name]])[0] for name in inputs
                }
        changed = tuple(
            name for name, value in before.items() if not np.array_equal(value, arrays[name], equal_nan=True)
        )
        return Returned(outputs, gradients, changed=changed)


def _to_dtype(value: Any, dtype: str) -> Any:
    is_float = isinstance(value, np.ndarray) and value.dtype == np.float64
    return value.astype(dtype) if is_float else value.copy() if isinstance(value, np.ndarray) else value


@final
class TorchFramework(Framework):
    """Functions of torch tensors, differentiated by autograd."""

    name = "torch"

    def __init__(self, device: str = "cpu") -> None:
        self._device = device
        # Triton's interpreter computes products of bfloat16 wrongly, as its documentation says.
        is_interpreted = device == "cpu" and "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") == "1"
        self.dtypes = ("float32", "float64", *(() if is_interpreted else ("bfloat16",)), "float16")

    def call(
        self,
        function: Callable[..., Any],
        arguments: Arguments,
        dtype: str,
        upstream: np.ndarray,
        inputs: Sequence[str],
    ) -> Returned:
        """Call the function on new leaf tensors."""
        import torch

        kind = getattr(torch, dtype)

        def convert(value: Any, name: str) -> Any:
            if not isinstance(value, np.ndarray):
                return value
            tensor = torch.from_numpy(value).to(self._device, kind if value.dtype == np.float64 else None, copy=True)
            return tensor.requires_grad_(name in inputs)

        tensors = {name: convert(value, name) for name, value in arguments.items()}
        before = {name: tensor.detach().clone() for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)}
        result = _as_tuple(function(**tensors))
        output, gradients, error = result[0], {}, ""
        if inputs and output.requires_grad and tuple(output.shape) == upstream.shape:
            leaves = [tensors[name] for name in inputs]
            try:
                found = torch.autograd.grad(output, leaves, torch.from_numpy(upstream).to(output), allow_unused=True)
                gradients = dict(
                    zip(inputs, (None if part is None else _tensor_to_numpy(part) for part in found), strict=True)
                )
            except (RuntimeError, NotImplementedError) as failure:
                error = str(failure).strip().splitlines()[0]
        changed = tuple(
            name for name, value in before.items() if not torch.equal(value.nan_to_num(), tensors[name].nan_to_num())
        )
        outputs = tuple(_tensor_to_numpy(part) for part in result if isinstance(part, torch.Tensor))
        return Returned(outputs, gradients, error, changed)


def _tensor_to_numpy(tensor: Any) -> np.ndarray:
    array: np.ndarray = tensor.detach().double().cpu().numpy()
    return array


@final
class JaxFramework(Framework):
    """Functions of JAX arrays, differentiated by ``jax.vjp``."""

    name, dtypes = "jax", ("float32", "bfloat16", "float16")

    def call(
        self,
        function: Callable[..., Any],
        arguments: Arguments,
        dtype: str,
        upstream: np.ndarray,
        inputs: Sequence[str],
    ) -> Returned:
        """Call the function, and pull the gradient of the output back."""
        import jax
        import jax.numpy

        def convert(value: Any) -> Any:
            if not isinstance(value, np.ndarray):
                return value
            return jax.numpy.asarray(value, dtype=dtype if value.dtype == np.float64 else None)

        arrays = {name: convert(value) for name, value in arguments.items()}
        leaves = {name: arrays[name] for name in inputs}

        def output_and_rest(leaves: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...]]:
            result = _as_tuple(function(**{**arrays, **leaves}))
            return result[0], result[1:]

        output, pull, rest = jax.vjp(output_and_rest, leaves, has_aux=True)
        gradients: dict[str, np.ndarray | None] = {}
        if inputs and output.shape == upstream.shape:
            (found,) = pull(jax.numpy.asarray(upstream, dtype=output.dtype))
            gradients = {name: _to_float64([found[name]])[0] for name in inputs}
        return Returned(_to_float64((output, *rest)), gradients)


@final
class DlpackFramework(Framework):
    """Functions of the arrays of any framework that has ``from_dlpack``; without gradients."""

    name, dtypes = "dlpack", ("float32", "float64", "float16")

    def __init__(self, from_dlpack: Callable[[Any], Any]) -> None:
        self._from_dlpack = from_dlpack

    def call(
        self,
        function: Callable[..., Any],
        arguments: Arguments,
        dtype: str,
        upstream: np.ndarray,
        inputs: Sequence[str],
    ) -> Returned:
        """Call the function on arrays that share memory with copies of ours."""
        arrays = {name: _to_dtype(value, dtype) for name, value in arguments.items()}
        foreign = {
            name: self._from_dlpack(value) if isinstance(value, np.ndarray) else value for name, value in arrays.items()
        }
        return Returned(
            _to_float64(
                [np.from_dlpack(part) for part in _as_tuple(function(**foreign)) if hasattr(part, "__dlpack__")]
            )
        )


FRAMEWORKS: Mapping[str, type[Framework]] = {"numpy": NumpyFramework, "torch": TorchFramework, "jax": JaxFramework}


def make_framework(name: str, backward: Callable[..., Any] | None = None, device: str = "cpu") -> Framework:
    """The framework of this name, or any module that has ``from_dlpack``, such as cupy.

    Raises OptionError for another name, MissingPackageError if it is not installed.
    """
    if isinstance(name, str) and re.fullmatch(r"[A-Za-z_][\w.]*", name) and name not in FRAMEWORKS:
        from_dlpack = _find_from_dlpack(name)
        if from_dlpack is not None:
            return DlpackFramework(from_dlpack)
    check_choice("framework", name, FRAMEWORKS)
    if name == "numpy":
        return NumpyFramework(backward)
    if find_spec(name) is None:
        raise MissingPackageError(
            f"the package {name} is not installed",
            expected=f"the package {name}",
            got="no such package",
            do=f"pip install {name}",
        )
    return TorchFramework(device) if name == "torch" else JaxFramework()


def _find_from_dlpack(name: str) -> Callable[[Any], Any] | None:
    try:
        found: Callable[[Any], Any] | None = getattr(import_module(name), "from_dlpack", None)
    except ImportError:
        return None
    return found
