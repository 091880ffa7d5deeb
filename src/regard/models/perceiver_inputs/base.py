"""The interface of a Perceiver's input: its options, its layer, the tokens that the layer makes; trained vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.errors import DtypeError, OptionError, ShapeError, short_repr
from regard.fields import check_fields, repr_of_fields
from regard.layers.input_checks import find_visible_tokens
from regard.positions import FourierFeatures, grid_positions
from regard.tensors import check_tensor


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
    """The layer of an input whose tokens are computed each from its own part of the raw data.

    A token has ``features`` numbers and, with ``fourier``, the Fourier features of its place in the grid.
    """

    def __init__(self, options: PerceiverInput, features: int, fourier: FourierFeatures | None = None) -> None:
        super().__init__()
        self.options: Any = options
        self.features, self.fourier = features, fourier

    @property
    def width(self) -> int:
        """The size of a token."""
        return self.features + (0 if self.fourier is None else self.fourier.width)

    @abstractmethod
    def cut(self, inputs: Any) -> tuple[Tensor, tuple[int, ...]]:
        """Check raw data and cut it, without weights, into the features of each token: (batch, tokens, features).

        The second result is the grid of the tokens, such as (height, width).
        """

    def embed(self, features: Tensor, grid: tuple[int, ...]) -> Float[Tensor, "batch tokens width"]:
        """Compute the tokens from their features and their places in the grid."""
        if self.fourier is None:
            return features
        return append_positions(features, self.fourier(grid_positions(grid, device=features.device)))

    def forward(self, inputs: Any, *, mask: Any = None) -> InputTokens:
        """Cut, hide and embed."""
        features, grid = self.cut(inputs)
        visible = find_visible(mask, features)
        if visible is not None:
            features = features.masked_fill(~visible[(...,) + (None,) * (features.dim() - 2)], 0)
        return InputTokens(self.embed(features, grid), visible)


class PerceiverInput(ABC):
    """The hyperparameters of an input of a Perceiver."""

    kind: ClassVar[str]
    """The name of the kind in config.json."""

    def __post_init__(self) -> None:
        check_fields(self)

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


@final
class TrainedPositions(nn.Module):
    """Trained vectors (positions, width), normal at first; the parameter has its name in files of ``transformers``."""

    def __init__(self, positions: int, width: int, deviation: float) -> None:
        super().__init__()
        self.position_embeddings = nn.Parameter(torch.empty(positions, width))
        nn.init.normal_(self.position_embeddings, std=deviation)

    def forward(self) -> Float[Tensor, "positions width"]:
        """Return the vectors."""
        return self.position_embeddings


def trained_numbers(sizes: Mapping[str, int], deviation: float) -> nn.ParameterDict:
    """Make trained numbers (1, size) for each name, normal at first."""
    numbers = {name: nn.Parameter(torch.empty(1, size)) for name, size in sizes.items()}
    for parameter in numbers.values():
        nn.init.normal_(parameter, std=deviation)
    return nn.ParameterDict(numbers)


def append_positions(features: Tensor, positions: Float[Tensor, "tokens size"]) -> Float[Tensor, "batch tokens width"]:
    """Put the position of each token behind its features (batch, tokens, ..)."""
    spread = positions.to(features).expand(features.shape[0], -1, -1)
    return torch.cat([features, spread], dim=-1)
