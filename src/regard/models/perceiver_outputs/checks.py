"""Checks of the labels of a Perceiver's output, and of the queries that are chosen."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.errors import DtypeError, OptionError, RefusedError, ShapeError, short_repr
from regard.models.perceiver_inputs import InputLayer
from regard.models.perceiver_outputs.base import OutputQueries
from regard.tensors import check_tensor, has_values


def check_labels(labels: object) -> None:
    """Raise OptionError unless ``labels`` is a tuple of one or more names. Published models have equal names twice."""
    if not isinstance(labels, tuple) or not labels or not all(isinstance(one, str) for one in labels):
        raise OptionError(
            "wrong labels", expected="a tuple of names", got=short_repr(labels), do='for example labels=("cat", "dog")'
        )


def check_at(name: str, at: object, count: int) -> Tensor:
    """Return the indices of queries. Raises DtypeError, ShapeError or OptionError unless they are 0 to count - 1."""
    expected = f"a tensor (n,) of integers from 0 to {count - 1}"
    check_tensor(name, at, expected)
    assert isinstance(at, Tensor)
    if at.is_floating_point() or at.is_complex() or at.dtype is torch.bool:
        raise DtypeError(f"{name} holds no indices", expected=expected, got=str(at.dtype), do="use at.long()")
    if at.dim() != 1:
        raise ShapeError(f"{name} is not a list", expected=expected, got=str(tuple(at.shape)), do="use at.flatten()")
    at = at.long()
    if at.numel() and has_values(at) and not 0 <= int(at.min()) <= int(at.max()) < count:
        raise OptionError(
            f"{name} names outputs that do not exist",
            expected=expected,
            got=f"{int(at.min())} to {int(at.max())}",
            do="count outputs from 0",
        )
    return at


def check_no_choice(at: object) -> None:
    """Raise RefusedError for a choice of queries, where there is one."""
    if at is not None:
        raise RefusedError(
            "labels have one query, so there is nothing to choose",
            expected="at=None",
            got=short_repr(at),
            do="leave at out",
        )


def wrong_input_error(output: OutputQueries, expected: str, source: InputLayer) -> OptionError:
    """The error for an output that does not go with the input; ``expected`` is one that does."""
    options = getattr(source, "options", source)
    return OptionError(
        f"{type(output).__name__} does not go with this input",
        expected=expected,
        got=type(options).__name__,
        do="choose another output",
    )
