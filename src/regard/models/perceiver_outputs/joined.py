"""Queries of several kinds as one output of a Perceiver, by name: patches of samples, pixels of frames, and labels.

Each is padded by trained numbers to one width. Jaegle et al. 2021, "Perceiver IO", appendix G.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import OptionError, check_count, check_kind, short_repr
from regard.fields import check_fields, declare
from regard.layers import NoResidual
from regard.layers.projection import linear_activation
from regard.models.hyperparameters import model_field, size_field
from regard.models.perceiver_blocks import BlockOptions, make_cross_block
from regard.models.perceiver_inputs import InputLayer, InputTokens, TrainedPositions, check_part_name, trained_numbers
from regard.models.perceiver_outputs.base import (
    OUTPUT_LABELS,
    Decoded,
    OutputLayer,
    OutputQueries,
    check_at,
    check_no_choice,
)
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


@final
@explain_arguments
@dataclass(frozen=True)
class JoinedOutput(OutputQueries):
    """Several outputs by name, decoded by one block; ``at`` is a mapping with the ``at`` of some parts.

    Queries are padded with trained numbers to the width of all.
    """

    kind: ClassVar[str] = "joined"
    parts: Mapping[str, PartOutput] = field(
        metadata=declare("outputs by name", example='for example {"sound": AudioOutput()}')
    )
    width: int = size_field(512, "numbers of a decoded query, which the last layer of its part reads")
    padding: int = model_field(2, "least number of trained numbers that pad a query", minimum=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "parts", dict(sorted(self.parts.items())))
        for name, part in self.parts.items():
            check_part_name(name)
            check_kind(f"part {name!r}", part, PartOutput, do="for example AudioOutput()")
        check_count("number of parts", len(self.parts))

    def __hash__(self) -> int:
        return hash((tuple(self.parts.items()), self.width, self.padding))

    @property
    def labels(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names of labels of the part that has some."""
        found = [part.labels for part in self.parts.values() if isinstance(part, LabelOutput)]
        return found[0] if found else ()

    def build(self, options: BlockOptions, source: InputLayer) -> OutputLayer:
        """Make the parts, the block and the layer behind it."""
        del source
        return _JoinedLayer(self, options)


@final
class _JoinedLayer(OutputLayer):
    def __init__(self, output: JoinedOutput, options: BlockOptions) -> None:
        super().__init__()
        layers = {name: part.build(output.width, options.deviation) for name, part in output.parts.items()}
        self.parts = nn.ModuleDict(layers)
        width = max(layer.width for layer in layers.values()) + output.padding
        self.padding = trained_numbers({name: width - layer.width for name, layer in layers.items()}, options.deviation)
        self.block = make_cross_block(
            options, width=width, memory_width=options.latent_width, heads=1, residual=NoResidual
        )
        self.last = nn.Linear(width, output.width)

    def forward(self, latents: Tensor, source: InputLayer, tokens: InputTokens, at: Any) -> Decoded:
        del source, tokens
        chosen = self._choices(at)
        queries = []
        layers = cast("Mapping[str, PartLayer]", self.parts)
        for name, layer in layers.items():
            own = layer.make_queries(name, chosen.get(name), latents)
            queries.append(torch.cat([own, self.padding[name].expand(len(own), -1)], dim=1))
        decoded = self.block(torch.cat(queries).expand(latents.shape[0], -1, -1), latents)
        parts = linear_activation(decoded, self.last).split([len(own) for own in queries], dim=1)
        named = zip(layers.items(), parts, strict=True)
        return Decoded({name: layer.read(part) for (name, layer), part in named})

    def _choices(self, at: Any) -> Mapping[str, Any]:
        if at is None:
            return {}
        if not isinstance(at, Mapping) or not set(at) <= set(self.parts):
            raise OptionError(
                "at of a joined output goes by the names of its parts",
                expected=f"a mapping with some of {', '.join(self.parts)}",
                got=", ".join(map(str, at)) if isinstance(at, Mapping) else short_repr(at),
                do="leave out the parts that are decoded whole",
            )
        return at
