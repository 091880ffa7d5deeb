"""The interface of a Perceiver's output: its options, its layer, and what it returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, final

from jaxtyping import Float
from torch import Tensor, nn

from regard.fields import repr_of_fields
from regard.models.perceiver_blocks import BlockOptions
from regard.models.perceiver_inputs import InputLayer, InputTokens


@final
@dataclass(frozen=True, eq=False)
class Decoded:
    """What an output returns.

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
        """Ask the ``latents`` by the queries ``at``; None is all. ``source`` and ``tokens`` are those of the input.

        Raises DtypeError, ShapeError or OptionError for an ``at`` that names no queries.
        """


class OutputQueries(ABC):
    """What a Perceiver returns: the hyperparameters of an output."""

    kind: ClassVar[str]
    """The name of the kind in config.json."""

    labels: tuple[str, ...] = ()
    """The names of labels, in the order of the logits; empty if there are none."""

    @abstractmethod
    def build(self, options: BlockOptions, source: InputLayer) -> OutputLayer:
        """Make the layer. Raises OptionError for an input that the output does not go with."""
