"""The interface of a Perceiver's output: its options, its layer, what it returns, and the checks of queries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import DtypeError, OptionError, RefusedError, ShapeError, short_repr
from regard.fields import check_fields, declare, repr_of_fields
from regard.models.perceiver_blocks import BlockOptions
from regard.models.perceiver_inputs import InputLayer, InputTokens
from regard.tensors import check_tensor, has_values


@final
@dataclass(frozen=True, eq=False)
class Decoded:
    """The result of an output.

    logits  its numbers: see the kind of output
    pooled  (batch, width), the vector that the last layer of a ``ClassOutput`` reads; None for others
    """

    __repr__ = repr_of_fields

    logits: Tensor | dict[str, Tensor]
    pooled: Float[Tensor, "batch width"] | None = None


class OutputLayer(nn.Module, ABC):
    """The layer of an output."""

    @abstractmethod
    def forward(
        self, latents: Float[Tensor, "batch latents width"], source: InputLayer, tokens: InputTokens, at: Any
    ) -> Decoded:
        """Ask the ``latents`` by the queries ``at``; None is all. ``source`` and ``tokens`` belong to the input.

        Raises DtypeError, ShapeError or OptionError for an ``at`` that names no queries.
        """


class OutputQueries(ABC):
    """The hyperparameters of an output of a Perceiver."""

    kind: ClassVar[str]
    """The name of the kind in config.json."""

    labels: tuple[str, ...] = ()
    """The names of labels, in the order of the logits; empty if there are none."""

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def build(self, options: BlockOptions, source: InputLayer) -> OutputLayer:
        """Make the layer. Raises OptionError for an input that the output does not go with."""


def _check_labels(name: str, labels: object) -> None:
    """Raise OptionError unless ``labels`` is a tuple of one or more names. Published models have equal names twice."""
    if not isinstance(labels, tuple) or not labels or not all(isinstance(label, str) for label in labels):
        raise OptionError(
            f"wrong {name}", expected="a tuple of names", got=short_repr(labels), do='for example labels=("cat", "dog")'
        )


OUTPUT_LABELS = declare("the names of the labels, in the order of the logits", check=_check_labels)
"""The declaration of the labels of an output."""


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
