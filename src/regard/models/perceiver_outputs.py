"""Outputs of a Perceiver: each asks the latents by queries of its own, one for each number or vector that it returns.

    ClassOutput     one trained query                          -> (batch, labels)
    TextOutput      a trained query for each position          -> (batch, length, vocabulary)
    PositionOutput  the same, without the last layer           -> (batch, length, width)
    FlowOutput      the tokens of the input as queries         -> (batch, height, width, 2)
    JoinedOutput    queries of several kinds, by name          -> a mapping with
        AudioOutput     Fourier features of patches                (batch, samples)
        VideoOutput     Fourier features of pixels                 (batch, pixels, channels)
        LabelOutput     one trained query                          (batch, labels)

    output = x + FFN(norm(x)),  x = [queries +] MultiHead(norm(queries), norm(latents))

Jaegle et al. 2021, "Perceiver IO", section 3.2, figure 3 and appendix E. Outputs do not depend on each other, so any of
them can be computed alone: ``at`` names the queries. An output is a dataclass, a part of ``PerceiverConfig``; its
``build`` makes the layer with the weights.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import (
    DtypeError,
    OptionError,
    RefusedError,
    ShapeError,
    check_count,
    check_kind,
    check_number,
    check_size,
    short_repr,
)
from regard.layers import CrossAttentionBlock, NoResidual, PreNorm
from regard.layers.projection import linear_activation
from regard.models.perceiver_blocks import BlockOptions, make_cross_block
from regard.models.perceiver_inputs import (
    FlowInput,
    InputLayer,
    InputTokens,
    TextLayer,
    TrainedPositions,
    check_part_name,
    trained_numbers,
)
from regard.positions import FourierFeatures
from regard.tensors import check_tensor, has_values


@final
@dataclass(frozen=True, eq=False)
class Decoded:
    """What an output returns.

    logits  its numbers: see the kind of output
    pooled  (batch, width), the vector that the last layer of a ``ClassOutput`` reads; None for others
    """

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


@final
@dataclass(frozen=True)
class ClassOutput(OutputQueries):
    """Logits of labels, (batch, labels), from one trained query with ``heads`` heads."""

    kind: ClassVar[str] = "class"
    labels: tuple[str, ...]
    heads: int = 1

    def __post_init__(self) -> None:
        check_labels(self.labels)
        check_size("heads", self.heads)

    def build(self, options: BlockOptions, source: InputLayer) -> OutputLayer:
        """Make the query, its block and the last layer."""
        del source
        return _ClassLayer(self, options)


@final
@dataclass(frozen=True)
class TextOutput(OutputQueries):
    """Logits of the token at each position, (batch, length, vocabulary), for masked language models.

    The last layer is the embedding of the ``TextInput``, and a bias. ``at`` holds positions (n,); None is all of the
    input's.
    """

    kind: ClassVar[str] = "text"
    heads: int = 8
    query_key_width: int = 256

    def __post_init__(self) -> None:
        check_size("heads", self.heads)
        check_size("query_key_width", self.query_key_width)

    def build(self, options: BlockOptions, source: InputLayer) -> OutputLayer:
        """Make the queries and their block."""
        if not isinstance(source, TextLayer):
            raise _wrong_input_error(self, "a TextInput", source)
        return _TextLayer(self, options, source)


@final
@dataclass(frozen=True)
class PositionOutput(OutputQueries):
    """A vector for each position of a text, (batch, length, width of the ``TextInput``): a text encoder.

    As ``TextOutput`` without its last layer. ``at`` holds positions (n,); None is all of the input's.
    """

    kind: ClassVar[str] = "positions"
    heads: int = 8
    query_key_width: int = 256

    def __post_init__(self) -> None:
        check_size("heads", self.heads)
        check_size("query_key_width", self.query_key_width)

    def build(self, options: BlockOptions, source: InputLayer) -> OutputLayer:
        """Make the queries and their block."""
        if not isinstance(source, TextLayer):
            raise _wrong_input_error(self, "a TextInput", source)
        return _PositionLayer(self, options, source)


@final
@dataclass(frozen=True)
class FlowOutput(OutputQueries):
    """Numbers for each token of the input, such as the motion of each pixel: (batch, height, width, channels).

    They are divided by ``divisor``. ``at`` holds the indices of pixels (n,): the result is then (batch, n, channels).
    """

    kind: ClassVar[str] = "flow"
    channels: int = 2
    divisor: float = 100.0

    def __post_init__(self) -> None:
        check_size("channels", self.channels)
        check_number("divisor", self.divisor, above=0.0)

    def build(self, options: BlockOptions, source: InputLayer) -> OutputLayer:
        """Make the block and the last layer."""
        read = getattr(source, "options", None)
        if not isinstance(read, FlowInput):
            raise _wrong_input_error(self, "a FlowInput", source)
        return _FlowLayer(self, options, source, read.size)


class PartOutput(ABC):
    """A part of a ``JoinedOutput``."""

    kind: ClassVar[str]

    @abstractmethod
    def build(self, width: int, deviation: float) -> PartLayer:
        """Make the layer of the part, whose decoded vectors have ``width`` components."""


@final
@dataclass(frozen=True)
class AudioOutput(PartOutput):
    """Samples of sound (batch, samples), decoded in patches; ``at`` holds indices of patches (n,)."""

    kind: ClassVar[str] = "audio"
    samples: int = 30720
    patch: int = 16
    bands: int = 192

    def __post_init__(self) -> None:
        for name in ("samples", "patch", "bands"):
            check_size(name, getattr(self, name))
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
@dataclass(frozen=True)
class VideoOutput(PartOutput):
    """Pixels of a video (batch, pixels, channels), frame by frame; ``at`` holds indices of pixels (n,).

    ``shape`` is (frames, height, width), and ``resolution`` the same for the largest frequencies; None is ``shape``.
    """

    kind: ClassVar[str] = "video"
    shape: tuple[int, int, int] = (16, 224, 224)
    channels: int = 3
    bands: int = 32
    resolution: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        for name in ("channels", "bands"):
            check_size(name, getattr(self, name))
        for shape in (self.shape, self.resolution or self.shape):
            if not isinstance(shape, tuple) or len(shape) != 3:
                raise OptionError(
                    "wrong shape of a video",
                    expected="(frames, height, width)",
                    got=short_repr(shape),
                    do="for example shape=(16, 224, 224)",
                )
            for size in shape:
                check_size("shape", size)

    def build(self, width: int, deviation: float) -> PartLayer:
        """Make the last layer."""
        del deviation
        positions = FourierFeatures(self.resolution or self.shape, self.bands)
        return _GridPart(positions, self.shape, nn.Linear(width, self.channels), joins=False)


@final
@dataclass(frozen=True)
class LabelOutput(PartOutput):
    """Logits of labels (batch, labels), from one trained query of ``width`` numbers; ``at`` is None."""

    kind: ClassVar[str] = "label"
    labels: tuple[str, ...]
    width: int = 1024

    def __post_init__(self) -> None:
        check_labels(self.labels)
        check_size("width", self.width)

    def build(self, width: int, deviation: float) -> PartLayer:
        """Make the query and the last layer."""
        return _LabelPart(TrainedPositions(1, self.width, deviation), nn.Linear(width, len(self.labels)))


@final
@dataclass(frozen=True)
class JoinedOutput(OutputQueries):
    """Several outputs by name, decoded by one block; ``at`` is a mapping with the ``at`` of some parts.

    Queries are padded with trained numbers, at least ``padding`` of them, to the width of all. Each is decoded to
    ``width`` numbers, which the last layer of its part reads.
    """

    kind: ClassVar[str] = "joined"
    parts: Mapping[str, PartOutput]
    width: int = 512
    padding: int = 2

    def __post_init__(self) -> None:
        check_kind("parts", self.parts, Mapping, do='for example {"sound": AudioOutput()}')
        object.__setattr__(self, "parts", dict(sorted(self.parts.items())))
        for name, part in self.parts.items():
            check_part_name(name)
            check_kind(f"part {name!r}", part, PartOutput, do="for example AudioOutput()")
        check_count("number of parts", len(self.parts))
        check_size("width", self.width)
        check_count("padding", self.padding, least=0)

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


def check_labels(labels: object) -> None:
    """Raise OptionError unless ``labels`` is a tuple of one or more names. Published models have equal names twice."""
    if not isinstance(labels, tuple) or not labels or not all(isinstance(one, str) for one in labels):
        raise OptionError(
            "wrong labels", expected="a tuple of names", got=short_repr(labels), do='for example labels=("cat", "dog")'
        )


@final
class _ClassLayer(OutputLayer):
    def __init__(self, output: ClassOutput, options: BlockOptions) -> None:
        super().__init__()
        width = options.latent_width
        self.queries = TrainedPositions(1, width, options.deviation)
        self.block = make_cross_block(options, width=width, memory_width=width, heads=output.heads, residual=PreNorm)
        self.last = nn.Linear(width, len(output.labels))

    def forward(self, latents: Tensor, source: InputLayer, tokens: InputTokens, at: Any) -> Decoded:
        del source, tokens
        _check_no_choice(at)
        pooled = self.block(self.queries().expand(latents.shape[0], -1, -1), latents)[:, 0]
        return Decoded(linear_activation(pooled, self.last), pooled)


@final
class _TextLayer(OutputLayer):
    def __init__(self, output: TextOutput, options: BlockOptions, source: TextLayer) -> None:
        super().__init__()
        self.queries = TrainedPositions(source.options.max_length, source.width, options.deviation)
        self.block = _make_position_block(output, options, source)
        self.last = _Bias(source.options.vocabulary)

    def forward(self, latents: Tensor, source: InputLayer, tokens: InputTokens, at: Any) -> Decoded:
        assert isinstance(source, TextLayer), "build checks it"
        decoded = self.block(_choose_positions(self.queries(), latents, tokens, at), latents)
        return Decoded(nn.functional.linear(decoded, source.token_embedding.weight, self.last.bias))


@final
class _PositionLayer(OutputLayer):
    def __init__(self, output: PositionOutput, options: BlockOptions, source: TextLayer) -> None:
        super().__init__()
        self.queries = TrainedPositions(source.options.max_length, source.width, options.deviation)
        self.block = _make_position_block(output, options, source)

    def forward(self, latents: Tensor, source: InputLayer, tokens: InputTokens, at: Any) -> Decoded:
        del source
        return Decoded(self.block(_choose_positions(self.queries(), latents, tokens, at), latents))


def _make_position_block(
    output: TextOutput | PositionOutput, options: BlockOptions, source: TextLayer
) -> CrossAttentionBlock:
    return make_cross_block(
        options,
        width=source.width,
        memory_width=options.latent_width,
        heads=output.heads,
        residual=NoResidual,
        query_key_width=output.query_key_width,
        value_width=source.width,
    )


def _choose_positions(queries: Tensor, latents: Tensor, tokens: InputTokens, at: Any) -> Tensor:
    """The queries of all positions of the input, or of those ``at``, for each row of the batch."""
    chosen = queries[: tokens.tokens.shape[1]] if at is None else queries[check_at("at", at, len(queries))]
    return chosen.expand(latents.shape[0], -1, -1)


@final
class _Bias(nn.Module):
    """The bias of a last layer whose matrix is the embedding."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(size))


@final
class _FlowLayer(OutputLayer):
    def __init__(self, output: FlowOutput, options: BlockOptions, source: InputLayer, grid: tuple[int, int]) -> None:
        super().__init__()
        self.divisor, self.grid = output.divisor, grid
        width = source.width
        self.block = make_cross_block(
            options, width=width, memory_width=options.latent_width, heads=1, residual=NoResidual
        )
        self.last = nn.Linear(width, output.channels)

    def forward(self, latents: Tensor, source: InputLayer, tokens: InputTokens, at: Any) -> Decoded:
        del source
        queries = tokens.tokens
        if at is not None:
            queries = queries[:, check_at("at", at, queries.shape[1])]
        flow = linear_activation(self.block(queries, latents), self.last) / self.divisor
        return Decoded(flow.unflatten(1, self.grid) if at is None else flow)


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

    That of an input's token is -1 + 2 i / (n - 1).
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
        _check_no_choice(at)
        return self.queries()

    def read(self, decoded: Float[Tensor, "batch n width"]) -> Tensor:
        return linear_activation(decoded[:, 0], self.last)


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
        for name, layer in self.parts.items():
            own = layer.make_queries(name, chosen.get(name), latents)  # type: ignore[operator]
            queries.append(torch.cat([own, self.padding[name].expand(len(own), -1)], dim=1))
        decoded = self.block(torch.cat(queries).expand(latents.shape[0], -1, -1), latents)
        parts = linear_activation(decoded, self.last).split([len(own) for own in queries], dim=1)
        named = zip(self.parts.items(), parts, strict=True)
        return Decoded({name: layer.read(part) for (name, layer), part in named})  # type: ignore[operator]

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


def _check_no_choice(at: object) -> None:
    if at is not None:
        raise RefusedError(
            "labels have one query, so there is nothing to choose",
            expected="at=None",
            got=short_repr(at),
            do="leave at out",
        )


def _wrong_input_error(output: OutputQueries, expected: str, source: InputLayer) -> OptionError:
    options = getattr(source, "options", source)
    return OptionError(
        f"{type(output).__name__} does not go with this input",
        expected=expected,
        got=type(options).__name__,
        do="choose another output",
    )
