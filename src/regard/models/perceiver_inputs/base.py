"""The interface of a Perceiver's input: its options, its layer, and the tokens that the layer makes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.fields import repr_of_fields
from regard.models.visible_tokens import find_visible_tokens


@final
@dataclass(frozen=True, eq=False)
class InputTokens:
    """The tokens of an input.

    tokens   (batch, tokens, width)
    visible  (batch, tokens), False for tokens that a mask hides; None if it hides none
    sizes    the number of tokens of each part of a joined input, in their order; empty for others
    """

    __repr__ = repr_of_fields

    tokens: Float[Tensor, "batch tokens width"]
    visible: Bool[Tensor, "batch tokens"] | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)


class InputLayer(nn.Module, ABC):
    """The layer of an input."""

    @property
    @abstractmethod
    def width(self) -> int:
        """The size of a token."""

    @abstractmethod
    def forward(self, inputs: Any, *, mask: Any = None) -> InputTokens:
        """Turn raw data into tokens. ``mask`` says which tokens may be attended to.

        Raises ShapeError, DtypeError or OptionError for data that do not fit, RefusedError for a mask that hides a
        token from some latents only.
        """


class TokenwiseLayer(InputLayer):
    """The layer of an input whose tokens are computed each from its own part of the raw data."""

    @abstractmethod
    def cut(self, inputs: Any) -> tuple[Tensor, tuple[int, ...]]:
        """Check raw data and cut it, without weights, into the features of each token: (batch, tokens, features).

        The second result is the grid of the tokens, such as (height, width).
        """

    @abstractmethod
    def embed(self, features: Tensor, grid: tuple[int, ...]) -> Float[Tensor, "batch tokens width"]:
        """Compute the tokens from their features and their places in the grid."""

    def forward(self, inputs: Any, *, mask: Any = None) -> InputTokens:
        """Cut, hide and embed."""
        features, grid = self.cut(inputs)
        visible = find_visible(mask, features)
        if visible is not None:
            features = features.masked_fill(~visible[(...,) + (None,) * (features.dim() - 2)], 0)
        return InputTokens(self.embed(features, grid), visible)


class PerceiverInput(ABC):
    """What a Perceiver reads: the hyperparameters of an input."""

    kind: ClassVar[str]
    """The name of the kind in config.json."""

    @abstractmethod
    def build(self, deviation: float) -> InputLayer:
        """Make the layer; ``deviation`` is the standard deviation of initial trained positions."""


def find_visible(mask: object, features: Tensor) -> Bool[Tensor, "batch tokens"] | None:
    """Which tokens of ``features`` (batch, tokens, ..) a mask shows, or None without a mask.

    Raises ShapeError for a mask of another size, RefusedError for one that shows a token to some latents or heads only.
    """
    return find_visible_tokens(
        mask,
        (features.shape[0], features.shape[1]),
        features.device,
        what="a mask of a Perceiver's input shows a token to all latents, or hides it from all",
        do="leave other masks out: latents have no order",
    )
