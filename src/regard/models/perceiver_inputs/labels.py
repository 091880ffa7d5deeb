"""A vector of label weights as an input of a Perceiver: one token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

from jaxtyping import Float
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import check_size
from regard.models.perceiver_inputs.base import InputLayer, PerceiverInput, TokenwiseLayer
from regard.models.perceiver_inputs.checks import check_floats


@final
@explain_arguments
@dataclass(frozen=True)
class LabelInput(PerceiverInput):
    """A vector of numbers (batch, labels), such as a one-hot label, as one token."""

    kind: ClassVar[str] = "label"
    labels: int = 700

    def __post_init__(self) -> None:
        check_size("labels", self.labels)

    def build(self, deviation: float) -> InputLayer:
        """Make the layer, which has no weights."""
        del deviation
        return _LabelLayer(self)


@final
class _LabelLayer(TokenwiseLayer):
    def __init__(self, options: LabelInput) -> None:
        super().__init__()
        self.options = options

    @property
    def width(self) -> int:
        return self.options.labels

    def cut(self, inputs: Any) -> tuple[Tensor, tuple[int, ...]]:
        check_floats(inputs, ("batch", self.options.labels))
        return inputs[:, None], (1,)

    def embed(self, features: Tensor, grid: tuple[int, ...]) -> Float[Tensor, "batch tokens width"]:
        del grid
        return features
