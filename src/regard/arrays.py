"""Zero-copy exchange of arrays with other frameworks: NumPy, JAX, CuPy, and so on.

NumPy arrays are read through their buffer, all others through DLPack, the protocol that array libraries share
(https://data-apis.org/array-api/latest/design_topics/data_interchange.html). Results are arrays of the same kind as the
inputs. No gradients are kept: the other framework could not follow them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.dlpack import from_dlpack
from typing_extensions import TypeVar

from regard.errors import DtypeError


@runtime_checkable
class SupportsDLPack(Protocol):
    """An array or tensor that supports DLPack: of torch, NumPy, JAX and others."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """Export the array as a DLPack capsule."""


Array = TypeVar("Array", bound=SupportsDLPack, default=Tensor)
"""An array of one kind: results have the same type as the inputs."""

FromTensor: TypeAlias = Callable[[Tensor], Any]


def is_foreign(array: object) -> bool:
    """Whether ``array`` is an array of a framework other than torch."""
    return not isinstance(array, Tensor) and hasattr(array, "__dlpack__")


def call_on_tensors(function: Callable[..., Any], query: Any, key: Any, value: Any, **options: Any) -> Any:
    """Call ``function`` on tensors that share the arrays' memory, and convert its result to arrays of the same kind.

    ``options`` are passed on unchanged, except for a bias and sinks that are arrays. ``function`` returns a tensor, or
    a dataclass with tensor fields. Raises DtypeError for arrays of different kinds, and for arrays that cannot be read.
    """
    arrays = {"query": query, "key": key, "value": value}
    arrays |= {name: options.pop(name) for name in ("bias", "sinks") if hasattr(options.get(name), "__dlpack__")}
    if len({_array_type(array) for array in arrays.values()}) > 1:
        raise DtypeError(
            "arrays of different frameworks",
            expected="all arrays from one framework",
            got=", ".join(f"{name} {type(array).__module__}.{type(array).__name__}" for name, array in arrays.items()),
            do="convert them to the kind you want back",
        )
    back = _tensor_converter(query)
    with torch.no_grad():
        result = function(**{name: as_tensor(array, name) for name, array in arrays.items()}, **options)
    if isinstance(result, Tensor):
        return back(result)
    changed = {field.name: getattr(result, field.name) for field in fields(result)}
    return replace(result, **{name: back(part) for name, part in changed.items() if isinstance(part, Tensor)})


def as_tensor(array: Any, name: str) -> Tensor:
    """Make a tensor that shares an array's memory. Raises DtypeError, which names ``name``, if that is impossible."""
    try:
        return tensor_from_numpy(array) if isinstance(array, np.ndarray) else from_dlpack(array)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        raise DtypeError(
            f"{name} is an array that cannot be read",
            expected="numbers in memory, of a dtype that torch supports",
            got=f"{type(array).__name__} {getattr(array, 'dtype', '')}: {error}",
            do="convert it to a float dtype; inside a traced function (jax.jit) there are no numbers yet",
        ) from error


def tensor_from_numpy(array: NDArray[Any]) -> Tensor:
    """Make a tensor that shares NumPy's memory. Arrays that torch cannot represent are copied: those with a foreign
    byte order, with negative strides, or with strides that are not a whole number of elements (a column of a structured
    array).
    """
    odd = any(stride < 0 or stride % max(1, array.itemsize) for stride in array.strides)
    if odd or not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    return torch.from_numpy(array if array.flags.writeable else _writeable_view(array))


def _writeable_view(array: NDArray[Any]) -> NDArray[Any]:
    """A view of read-only memory that claims to be writeable, as ``torch.from_numpy`` requires."""
    interface = dict(array.__array_interface__)
    interface["data"] = (interface["data"][0], False)
    return np.asarray(SimpleNamespace(__array_interface__=interface, owner=array))


def _array_type(array: Any) -> object:
    return np.ndarray if isinstance(array, np.ndarray) else type(array)


def _tensor_converter(array: Any) -> FromTensor:
    """Find the function that converts a tensor to the type of ``array``."""
    if isinstance(array, np.ndarray):
        return Tensor.numpy
    if hasattr(array, "__array_namespace__"):
        namespace = array.__array_namespace__()
    else:
        namespace = sys.modules.get(type(array).__module__.partition(".")[0])
    back: FromTensor | None = getattr(namespace, "from_dlpack", None)
    if back is None:
        raise DtypeError(
            f"results cannot be converted to {type(array).__name__}",
            expected="an array whose framework has from_dlpack",
            got=f"{type(array).__module__}.{type(array).__name__}",
            do="pass NumPy arrays: numpy.asarray(array)",
        )
    return back
