"""Parts of a joined output of a Perceiver: patches of samples, pixels of frames, and labels.

Jaegle et al. 2021, "Perceiver IO", appendix G.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import OptionError
from regard.fields import check_fields
from regard.layers.projection import linear_activation
from regard.models.hyperparameters import size_field
from regard.models.perceiver_inputs import TrainedPositions
from regard.models.perceiver_outputs.base import OUTPUT_LABELS, check_at, check_no_choice
from regard.positions import FourierFeatures


class PartOutput(ABC):
    """A part of a ``JoinedOutput``."""

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def build(self, width: int, deviation: float) -> PartLayer:
        """Make the layer of the part, whose decoded vectors have ``width`` components."""


@final
@explain_arguments
@dataclass(frozen=True)
class AudioOutput(PartOutput):
    """Samples of sound (batch, samples), decoded in patches; ``at`` holds indices of patches (n,)."""

    kind: ClassVar[str] = "audio"
    samples: int = size_field(30720, "number of samples")
    patch: int = size_field(16, "samples of a patch")
    bands: int = size_field(192, "number of Fourier features of a place")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples < self.patch:
            raise OptionError(
                "the sound is shorter than a patch",
                expected=f"{self.patch} samples or more",
                got=str(self.samples),
                do="choose a smaller patch",
            )

    def build(self, width: int, deviation: float) -> PartLayer:
        """Make the last layer."""
        del deviation
        positions = FourierFeatures((self.samples,), self.bands)
        return _GridPart(positions, (self.samples // self.patch,), nn.Linear(width, self.patch), joins=True)


@final
@explain_arguments
@dataclass(frozen=True)
class VideoOutput(PartOutput):
    """Pixels of a video (batch, pixels, channels), frame by frame; ``at`` holds indices of pixels (n,)."""

    kind: ClassVar[str] = "video"
    shape: tuple[int, int, int] = size_field((16, 224, 224), "(frames, height, width)")
    channels: int = size_field(3, "channels of a pixel")
    bands: int = size_field(32, "number of Fourier features of a place along each axis")
    resolution: tuple[int, int, int] | None = size_field(
        None, "(frames, height, width) for the largest frequencies; None is ``shape``"
    )

    def build(self, width: int, deviation: float) -> PartLayer:
        """Make the last layer."""
        del deviation
        positions = FourierFeatures(self.resolution or self.shape, self.bands)
        return _GridPart(positions, self.shape, nn.Linear(width, self.channels), joins=False)


@final
@explain_arguments
@dataclass(frozen=True)
class LabelOutput(PartOutput):
    """Logits of labels (batch, labels), from one trained query of ``width`` numbers; ``at`` is None."""

    kind: ClassVar[str] = "label"
    labels: tuple[str, ...] = field(metadata=OUTPUT_LABELS)
    width: int = size_field(1024, "size of the trained query")

    def build(self, width: int, deviation: float) -> PartLayer:
        """Make the query and the last layer."""
        return _LabelPart(TrainedPositions(1, self.width, deviation), nn.Linear(width, len(self.labels)))


class PartLayer(nn.Module, ABC):
    """The layer of a part of a joined output."""

    @property
    @abstractmethod
    def width(self) -> int:
        """The size of a query."""

    @abstractmethod
    def make_queries(self, name: str, at: Any, like: Tensor) -> Float[Tensor, "n width"]:
        """Make the queries ``at``, or all if it is None, with the device of ``like``."""

    @abstractmethod
    def read(self, decoded: Float[Tensor, "batch n width"]) -> Tensor:
        """Compute the output from what the queries were answered."""


@final
class _GridPart(PartLayer):
    """Queries at the cells of a grid. The position of cell i of n is -1 + 2 i / n, as in the published code.

    The position of an input's token is -1 + 2 i / (n - 1).
    """

    def __init__(self, positions: FourierFeatures, grid: tuple[int, ...], last: nn.Linear, *, joins: bool) -> None:
        super().__init__()
        self.positions, self.grid, self.last, self.joins = positions, grid, last, joins

    @property
    def width(self) -> int:
        return self.positions.width

    def make_queries(self, name: str, at: Any, like: Tensor) -> Float[Tensor, "n width"]:
        cells = math.prod(self.grid)
        index = torch.arange(cells, device=like.device) if at is None else check_at(f"at of {name!r}", at, cells)
        places = torch.stack(torch.unravel_index(index.to(like.device), self.grid), dim=1)
        return self.positions(-1 + 2 * places / torch.tensor(self.grid, device=like.device)).to(like)

    def read(self, decoded: Float[Tensor, "batch n width"]) -> Tensor:
        read = linear_activation(decoded, self.last)
        return read.flatten(1) if self.joins else read


@final
class _LabelPart(PartLayer):
    def __init__(self, queries: TrainedPositions, last: nn.Linear) -> None:
        super().__init__()
        self.queries, self.last = queries, last

    @property
    def width(self) -> int:
        return self.queries.position_embeddings.shape[1]

    def make_queries(self, name: str, at: Any, like: Tensor) -> Float[Tensor, "n width"]:
        del name, like
        check_no_choice(at)
        return self.queries()

    def read(self, decoded: Float[Tensor, "batch n width"]) -> Tensor:
        return linear_activation(decoded[:, 0], self.last)
