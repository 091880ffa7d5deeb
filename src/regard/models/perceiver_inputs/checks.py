"""Checks of the options and of the raw data of a Perceiver's input."""

from __future__ import annotations

from typing import Any

from regard.errors import DtypeError, OptionError, ShapeError, check_size, short_repr
from regard.tensors import check_tensor


def check_part_name(name: object) -> None:
    """Raise OptionError unless ``name`` is an identifier, by which weights are named in a file."""
    if not isinstance(name, str) or not name.isidentifier():
        raise OptionError(
            "wrong name of a part", expected="a word of letters", got=short_repr(name), do='for example "audio"'
        )


def check_floats(inputs: Any, shape: tuple[int | str, ...]) -> None:
    """Raise DtypeError or ShapeError unless ``inputs`` are floats of this shape; a word stands for any size above 0."""
    described = "(" + ", ".join(map(str, shape)) + ")"
    check_tensor("inputs", inputs, f"floats {described}")
    if not inputs.is_floating_point():
        raise DtypeError(
            "inputs are not floating-point numbers",
            expected=f"floats {described}",
            got=str(inputs.dtype),
            do="convert and normalise them, for example pixels.float() / 255",
        )
    fits = inputs.dim() == len(shape) and all(
        got == size if isinstance(size, int) else got > 0 or size == "batch"
        for got, size in zip(inputs.shape, shape, strict=True)
    )
    if not fits:
        raise ShapeError(
            "inputs do not fit the model",
            expected=described,
            got=str(tuple(inputs.shape)),
            do="reshape or resize them, or build the model for this size",
        )


def check_sizes(options: object, *names: str) -> None:
    """Raise OptionError unless the named ``options`` are sizes."""
    for name in names:
        check_size(name, getattr(options, name))


def check_shape(name: str, shape: object, *, axes: int) -> None:
    """Raise OptionError unless ``shape`` is a tuple of ``axes`` sizes."""
    if not isinstance(shape, tuple) or len(shape) != axes:
        example = (28, 28, 28)[:axes]
        raise OptionError(
            f"wrong {name}", expected=f"a tuple of {axes} integers", got=short_repr(shape), do=f"{name}={example}"
        )
    for size in shape:
        check_size(name, size)
