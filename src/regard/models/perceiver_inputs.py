"""Inputs of a Perceiver: each turns one kind of raw data into tokens for cross-attention, (batch, tokens, width).

    TokenInput          vectors of another model               as they are
    TextInput           token ids, such as bytes               embedding + trained position
    PixelInput          pixels                                 (channels, Fourier features of the position)
    TrainedPixelInput   pixels                                 (1x1 convolution, projection of a trained position)
    ConvolutionInput    a picture, cut by 4 along each side    (7x7 convolution and pooling, Fourier features)
    FlowInput           two pictures                           (linear layer over both, Fourier features)
    VideoInput          patches of frames                      (the pixels of a patch, Fourier features)
    AudioInput          patches of samples                     (the samples of a patch, Fourier features)
    LabelInput          a vector of label weights              one token
    JoinedInput         several of them, by name               each padded by trained numbers to one width

Jaegle et al. 2021, "Perceiver", section 3.2 and appendices B and C; "Perceiver IO", section 3 and appendices E to H. An
input is a dataclass, a part of ``PerceiverConfig``; its ``build`` makes the layer with the weights.

An input first cuts raw data into the features of each token, and then embeds these. What a mask hides is replaced by 0
between the two, so not even NaN reaches a weight or its gradient.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from regard.errors import (
    DtypeError,
    OptionError,
    RefusedError,
    ShapeError,
    check_count,
    check_kind,
    check_size,
    check_weights,
    short_repr,
)
from regard.layers.batch_norm_2d import BatchNorm2d
from regard.layers.last_channels import last_channels
from regard.layers.projection import linear_activation
from regard.masks import Mask
from regard.models.check_token_ids import check_token_ids
from regard.positions import FourierFeatures, grid_positions
from regard.tensors import check_tensor
from regard.text.byte_tokenizer import VOCABULARY
from regard.validation import check_mask

_MAX_AXES = 3
"""Axes of the largest grid: time, height and width of a video."""


@final
@dataclass(frozen=True, eq=False)
class InputTokens:
    """The tokens of an input.

    tokens   (batch, tokens, width)
    visible  (batch, tokens), False for tokens that a mask hides; None if it hides none
    sizes    the number of tokens of each part of a joined input, in their order; empty for others
    """

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


@final
@dataclass(frozen=True)
class TokenInput(PerceiverInput):
    """Vectors (batch, tokens, width), as they are."""

    kind: ClassVar[str] = "tokens"
    width: int

    def __post_init__(self) -> None:
        check_size("width", self.width)

    def build(self, deviation: float) -> InputLayer:
        """Make the layer, which has no weights."""
        del deviation
        return _TokenLayer(self)


@final
@dataclass(frozen=True)
class TextInput(PerceiverInput):
    """Token ids (batch, length), by default the bytes of ``regard.text.byte_tokenizer``, of at most ``max_length``."""

    kind: ClassVar[str] = "text"
    vocabulary: int = VOCABULARY
    max_length: int = 2048
    width: int = 768
    pad_id: int = 0

    def __post_init__(self) -> None:
        _check_sizes(self, "vocabulary", "max_length", "width")
        check_weights(rows=max(self.vocabulary, self.max_length), width=self.width)
        check_count("pad_id", self.pad_id, least=0, most=self.vocabulary - 1)

    def build(self, deviation: float) -> InputLayer:
        """Make the embeddings of ids and positions."""
        del deviation
        return TextLayer(self)


@final
@dataclass(frozen=True)
class PixelInput(PerceiverInput):
    """Pixels of pictures (batch, channels, height, width), each with ``bands`` Fourier features of its position.

    ``size`` is (height, width): its Nyquist frequencies are the largest. Pictures of other sizes are read too:
    positions always run from -1 to 1.
    """

    kind: ClassVar[str] = "pixels"
    size: tuple[int, int] = (224, 224)
    channels: int = 3
    bands: int = 64

    def __post_init__(self) -> None:
        _check_shape("size", self.size, axes=2)
        _check_sizes(self, "channels", "bands")

    def build(self, deviation: float) -> InputLayer:
        """Make the layer, which has no weights."""
        del deviation
        return _PixelLayer(self)


@final
@dataclass(frozen=True)
class TrainedPixelInput(PerceiverInput):
    """Pixels of pictures (batch, channels, height, width) through a 1x1 convolution, each with a trained position.

    Of ``width`` numbers each: a token is twice as wide. The model is told nothing about the grid of pixels. Trained
    positions of pictures of another size than ``size`` are interpolated (bicubic).
    """

    kind: ClassVar[str] = "trained_pixels"
    size: tuple[int, int] = (224, 224)
    channels: int = 3
    width: int = 256

    def __post_init__(self) -> None:
        _check_shape("size", self.size, axes=2)
        _check_sizes(self, "channels", "width")
        check_weights(positions=math.prod(self.size), width=self.width)

    def build(self, deviation: float) -> InputLayer:
        """Make the convolution and the positions."""
        return _TrainedPixelLayer(self, deviation)


@final
@dataclass(frozen=True)
class ConvolutionInput(PerceiverInput):
    """Pictures (batch, channels, height, width) through a 7x7 convolution and pooling: a token for 4x4 pixels.

    ``size`` is that of pictures, and ``resolution`` that of the grid of tokens, for the largest frequencies; None is a
    quarter of ``size``. Neighbouring tokens share pixels, so a mask of tokens is refused.
    """

    kind: ClassVar[str] = "convolution"
    size: tuple[int, int] = (224, 224)
    channels: int = 3
    width: int = 64
    bands: int = 64
    resolution: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        _check_shape("size", self.size, axes=2)
        _check_sizes(self, "channels", "width", "bands")
        if self.resolution is not None:
            _check_shape("resolution", self.resolution, axes=2)

    def build(self, deviation: float) -> InputLayer:
        """Make the convolution and its batch norm."""
        del deviation
        return _ConvolutionLayer(self)


@final
@dataclass(frozen=True)
class FlowInput(PerceiverInput):
    """Two pictures (batch, 2, channels, height, width) as one token for each pixel of both.

    ``channels`` are those of the neighbourhood of a pixel, 27 for 3x3 pixels of 3 colours. A linear layer maps both
    pictures to ``width`` numbers, beside Fourier features of the position.
    """

    kind: ClassVar[str] = "flow"
    size: tuple[int, int] = (368, 496)
    channels: int = 27
    width: int = 64
    bands: int = 64

    def __post_init__(self) -> None:
        _check_shape("size", self.size, axes=2)
        _check_sizes(self, "channels", "width", "bands")

    def build(self, deviation: float) -> InputLayer:
        """Make the linear layer."""
        del deviation
        return _FlowLayer(self)


@final
@dataclass(frozen=True)
class VideoInput(PerceiverInput):
    """Patches of videos (batch, frames, channels, height, width), each of ``patch`` x ``patch`` pixels of one frame.

    ``resolution`` is the largest number of frames and of patches along height and width.
    """

    kind: ClassVar[str] = "video"
    resolution: tuple[int, int, int] = (16, 56, 56)
    channels: int = 3
    patch: int = 4
    bands: int = 32

    def __post_init__(self) -> None:
        _check_shape("resolution", self.resolution, axes=3)
        _check_sizes(self, "channels", "patch", "bands")

    def build(self, deviation: float) -> InputLayer:
        """Make the layer, which has no weights."""
        del deviation
        return _VideoLayer(self)


@final
@dataclass(frozen=True)
class AudioInput(PerceiverInput):
    """Raw samples of sound (batch, samples), in patches of ``patch``; ``samples`` decides the largest frequency."""

    kind: ClassVar[str] = "audio"
    samples: int = 30720
    patch: int = 16
    bands: int = 192

    def __post_init__(self) -> None:
        _check_sizes(self, "samples", "patch", "bands")

    def build(self, deviation: float) -> InputLayer:
        """Make the layer, which has no weights."""
        del deviation
        return _AudioLayer(self)


@final
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
@dataclass(frozen=True)
class JoinedInput(PerceiverInput):
    """Several inputs by name, one behind the other, in the order of their names.

    Each is padded with trained numbers, at least ``padding`` of them, to the width of all, which tell the model what
    it is. The tokens of the parts in ``hidden`` are replaced by one trained token: a model that shall tell the label of
    a video reads no label.
    """

    kind: ClassVar[str] = "joined"
    parts: Mapping[str, PerceiverInput]
    padding: int = 4
    hidden: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_kind("parts", self.parts, Mapping, do='for example {"sound": AudioInput(), "picture": PixelInput()}')
        object.__setattr__(self, "parts", dict(sorted(self.parts.items())))
        for name, part in self.parts.items():
            check_part_name(name)
            check_kind(f"part {name!r}", part, PerceiverInput, do="for example AudioInput()")
            if isinstance(part, JoinedInput):
                raise OptionError(
                    f"the part {name!r} is joined itself",
                    expected="parts of one kind of data each",
                    got="a JoinedInput",
                    do="put its parts beside the others",
                )
        check_count("number of parts", len(self.parts))
        check_count("padding", self.padding, least=0)
        if not isinstance(self.hidden, tuple) or not set(self.hidden) <= set(self.parts):
            raise OptionError(
                "hidden names no parts",
                expected=f"a tuple of names among {', '.join(self.parts)}",
                got=short_repr(self.hidden),
                do=f"for example hidden=({next(iter(self.parts))!r},)",
            )

    def __hash__(self) -> int:
        return hash((tuple(self.parts.items()), self.padding, self.hidden))

    def build(self, deviation: float) -> InputLayer:
        """Make the layers of the parts, and the trained numbers."""
        return _JoinedLayer(self, deviation)


def check_part_name(name: object) -> None:
    """Raise OptionError unless ``name`` is an identifier, by which weights are named in a file."""
    if not isinstance(name, str) or not name.isidentifier():
        raise OptionError(
            "wrong name of a part", expected="a word of letters", got=short_repr(name), do='for example "audio"'
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


def find_visible(mask: object, features: Tensor) -> Bool[Tensor, "batch tokens"] | None:
    """Which tokens of ``features`` (batch, tokens, ..) a mask shows, or None without a mask.

    Raises ShapeError for a mask of another size, RefusedError for one that shows a token to some latents or heads only.
    """
    check_mask(mask)
    if mask is None:
        return None
    assert isinstance(mask, Mask)
    if mask.depends_on_query or mask.heads not in (None, 1):
        raise RefusedError(
            "a mask of a Perceiver's input shows a token to all latents, or hides it from all",
            expected="masks.padding(lengths), or masks.keep(visible[:, None, None, :])",
            got=repr(mask),
            do="leave other masks out: latents have no order",
        )
    batch, tokens = features.shape[:2]
    mask.check(batch, 1, 1, tokens)
    return mask.dense(1, tokens, device=features.device)[:, 0, 0].expand(batch, tokens)


def add_positions(features: Tensor, positions: Float[Tensor, "tokens size"]) -> Float[Tensor, "batch tokens width"]:
    """Put the position of each token behind its features (batch, tokens, ..)."""
    spread = positions.to(features).expand(features.shape[0], -1, -1)
    return torch.cat([features, spread], dim=-1)


@final
class _TokenLayer(TokenwiseLayer):
    def __init__(self, options: TokenInput) -> None:
        super().__init__()
        self.options = options

    @property
    def width(self) -> int:
        return self.options.width

    def cut(self, inputs: Any) -> tuple[Tensor, tuple[int, ...]]:
        _check_floats(inputs, ("batch", "tokens", self.options.width))
        return inputs, (inputs.shape[1],)

    def embed(self, features: Tensor, grid: tuple[int, ...]) -> Float[Tensor, "batch tokens width"]:
        del grid
        return features


@final
class TextLayer(TokenwiseLayer):
    """Embedding of token ids and of their positions, added."""

    def __init__(self, options: TextInput) -> None:
        super().__init__()
        self.options = options
        self.token_embedding = nn.Embedding(options.vocabulary, options.width)
        self.position_embedding = nn.Embedding(options.max_length, options.width)

    @property
    def width(self) -> int:
        """The size of a token."""
        return self.options.width

    def cut(self, inputs: Any) -> tuple[Tensor, tuple[int, ...]]:
        """Check ids (batch, length), at most ``max_length`` of them."""
        check_token_ids("ids", inputs, self.options.vocabulary)
        length = inputs.shape[1]
        if not 1 <= length <= self.options.max_length:
            raise ShapeError(
                "ids have no tokens" if length == 0 else "the text is too long",
                expected=f"ids (batch, length) with a length from 1 to {self.options.max_length}",
                got=str(tuple(inputs.shape)),
                do="shorten the text (truncation is never automatic), or build the model with a larger max_length",
            )
        return inputs, (length,)

    def embed(self, features: Tensor, grid: tuple[int, ...]) -> Float[Tensor, "batch tokens width"]:
        """Add the embeddings of ids and positions."""
        embedded: Tensor = self.token_embedding(features) + self.position_embedding.weight[: grid[0]]
        return embedded


@final
class _PixelLayer(TokenwiseLayer):
    def __init__(self, options: PixelInput) -> None:
        super().__init__()
        self.options = options
        self.positions = FourierFeatures(options.size, options.bands)

    @property
    def width(self) -> int:
        return self.options.channels + self.positions.width

    def cut(self, inputs: Any) -> tuple[Tensor, tuple[int, ...]]:
        _check_floats(inputs, ("batch", self.options.channels, "height", "width"))
        return inputs.flatten(2).transpose(1, 2), tuple(inputs.shape[2:])

    def embed(self, features: Tensor, grid: tuple[int, ...]) -> Float[Tensor, "batch tokens width"]:
        return add_positions(features, self.positions(grid_positions(grid, device=features.device)))


@final
class _TrainedPixelLayer(TokenwiseLayer):
    def __init__(self, options: TrainedPixelInput, deviation: float) -> None:
        super().__init__()
        self.options = options
        self.convolution = nn.Conv2d(options.channels, options.width, kernel_size=1)
        self.positions = TrainedPositions(math.prod(options.size), options.width, deviation)
        self.position_projection = nn.Linear(options.width, options.width)

    @property
    def width(self) -> int:
        return 2 * self.options.width

    def cut(self, inputs: Any) -> tuple[Tensor, tuple[int, ...]]:
        _check_floats(inputs, ("batch", self.options.channels, "height", "width"))
        return inputs.flatten(2).transpose(1, 2), tuple(inputs.shape[2:])

    def embed(self, features: Tensor, grid: tuple[int, ...]) -> Float[Tensor, "batch tokens width"]:
        # A 1x1 convolution is a linear layer on each pixel; its weight keeps the shape that files have.
        convolution = self.convolution
        embedded = functional.linear(features, convolution.weight.flatten(1), convolution.bias)
        return add_positions(embedded, linear_activation(self._positions(grid), self.position_projection))

    def _positions(self, grid: tuple[int, ...]) -> Float[Tensor, "tokens size"]:
        """The trained positions, interpolated for a picture of another size."""
        trained = self.positions()
        if grid == self.options.size:
            return trained
        height, width = self.options.size
        grid_of_trained = trained.view(1, height, width, -1).permute(0, 3, 1, 2)
        resized = functional.interpolate(grid_of_trained, size=grid, mode="bicubic", align_corners=False)
        return resized.flatten(2)[0].T


@final
class _ConvolutionLayer(InputLayer):
    def __init__(self, options: ConvolutionInput) -> None:
        super().__init__()
        self.options = options
        self.convolution = nn.Conv2d(options.channels, options.width, kernel_size=7, stride=2, padding=3, bias=False)
        self.norm = BatchNorm2d(options.width)
        quarter = (max(1, options.size[0] // 4), max(1, options.size[1] // 4))
        self.positions = FourierFeatures(options.resolution or quarter, options.bands)

    @property
    def width(self) -> int:
        return self.options.width + self.positions.width

    def forward(self, inputs: Any, *, mask: Any = None) -> InputTokens:
        _check_floats(inputs, ("batch", self.options.channels, "height", "width"))
        if mask is not None:
            raise RefusedError(
                "a Perceiver with a convolution cannot hide tokens: neighbours were computed from the same pixels",
                expected="mask=None",
                got=short_repr(mask),
                do="use PixelInput or TrainedPixelInput, whose tokens are single pixels",
            )
        if min(inputs.shape[2:]) < 5:
            raise ShapeError(
                "the picture is too small for the convolution",
                expected="a height and width of 5 or more",
                got=str(tuple(inputs.shape)),
                do="enlarge the picture, or use PixelInput",
            )
        features = self.norm(self.convolution(last_channels(inputs)))
        features = functional.relu(functional.max_pool2d(features, kernel_size=3, stride=2))  # pool(relu) is the same
        positions = self.positions(grid_positions(tuple(features.shape[2:]), device=features.device))
        return InputTokens(add_positions(features.flatten(2).transpose(1, 2), positions))


@final
class _FlowLayer(TokenwiseLayer):
    def __init__(self, options: FlowInput) -> None:
        super().__init__()
        self.options = options
        self.projection = nn.Linear(2 * options.channels, options.width)
        self.positions = FourierFeatures(options.size, options.bands)

    @property
    def width(self) -> int:
        return self.options.width + self.positions.width

    def cut(self, inputs: Any) -> tuple[Tensor, tuple[int, ...]]:
        _check_floats(inputs, ("batch", 2, self.options.channels, *self.options.size))
        return inputs.flatten(1, 2).flatten(2).transpose(1, 2), self.options.size

    def embed(self, features: Tensor, grid: tuple[int, ...]) -> Float[Tensor, "batch tokens width"]:
        positions = self.positions(grid_positions(grid, device=features.device))
        return add_positions(linear_activation(features, self.projection), positions)


@final
class _VideoLayer(TokenwiseLayer):
    def __init__(self, options: VideoInput) -> None:
        super().__init__()
        self.options = options
        self.positions = FourierFeatures(options.resolution, options.bands)

    @property
    def width(self) -> int:
        return self.options.channels * self.options.patch**2 + self.positions.width

    def cut(self, inputs: Any) -> tuple[Tensor, tuple[int, ...]]:
        _check_floats(inputs, ("batch", "frames", self.options.channels, "height", "width"))
        batch, frames, channels, height, width = inputs.shape
        patch = self.options.patch
        if height % patch or width % patch:
            raise ShapeError(
                "frames do not divide into patches",
                expected=f"a height and width that are multiples of {patch}",
                got=str(tuple(inputs.shape)),
                do="crop or resize the frames",
            )
        grid = (frames, height // patch, width // patch)
        blocks = inputs.reshape(batch, frames, channels, grid[1], patch, grid[2], patch)
        return blocks.permute(0, 1, 3, 5, 4, 6, 2).reshape(batch, math.prod(grid), -1), grid

    def embed(self, features: Tensor, grid: tuple[int, ...]) -> Float[Tensor, "batch tokens width"]:
        return add_positions(features, self.positions(grid_positions(grid, device=features.device)))


@final
class _AudioLayer(TokenwiseLayer):
    def __init__(self, options: AudioInput) -> None:
        super().__init__()
        self.options = options
        self.positions = FourierFeatures((options.samples,), options.bands)

    @property
    def width(self) -> int:
        return self.options.patch + self.positions.width

    def cut(self, inputs: Any) -> tuple[Tensor, tuple[int, ...]]:
        _check_floats(inputs, ("batch", "samples"))
        patch = self.options.patch
        if inputs.shape[1] % patch:
            raise ShapeError(
                "samples do not divide into patches",
                expected=f"a multiple of {patch} samples",
                got=str(tuple(inputs.shape)),
                do="pad them with zeros, and hide patches without sound: mask=masks.padding(patches)",
            )
        patches = inputs.shape[1] // patch
        return inputs.reshape(inputs.shape[0], patches, patch), (patches,)

    def embed(self, features: Tensor, grid: tuple[int, ...]) -> Float[Tensor, "batch tokens width"]:
        return add_positions(features, self.positions(grid_positions(grid, device=features.device)))


@final
class _LabelLayer(TokenwiseLayer):
    def __init__(self, options: LabelInput) -> None:
        super().__init__()
        self.options = options

    @property
    def width(self) -> int:
        return self.options.labels

    def cut(self, inputs: Any) -> tuple[Tensor, tuple[int, ...]]:
        _check_floats(inputs, ("batch", self.options.labels))
        return inputs[:, None], (1,)

    def embed(self, features: Tensor, grid: tuple[int, ...]) -> Float[Tensor, "batch tokens width"]:
        del grid
        return features


@final
class _JoinedLayer(InputLayer):
    def __init__(self, options: JoinedInput, deviation: float) -> None:
        super().__init__()
        self.options = options
        layers = {name: part.build(deviation) for name, part in options.parts.items()}
        self.parts = nn.ModuleDict(layers)
        self._width = max(layer.width for layer in layers.values()) + options.padding
        self.padding = trained_numbers({name: self._width - layer.width for name, layer in layers.items()}, deviation)
        # Files have such a token for each part, also for those that are never hidden.
        self.hidden_token = trained_numbers(dict.fromkeys(layers, self._width), deviation)

    @property
    def width(self) -> int:
        return self._width

    def forward(self, inputs: Any, *, mask: Any = None) -> InputTokens:
        """Join the tokens of ``inputs``, raw data by the names of the parts; ``mask`` has masks by the same names."""
        _check_names("inputs", inputs, self.parts, whole=True)
        if mask is not None:
            _check_names("mask", mask, self.parts, whole=False)
        given = {} if mask is None else mask
        tokens, visible, sizes = [], [], {}
        for name, layer in self.parts.items():
            part: InputTokens = layer(inputs[name], mask=given.get(name))
            batch, count, _ = part.tokens.shape
            if name in self.options.hidden:
                tokens.append(self.hidden_token[name].expand(batch, count, -1))
            else:
                tokens.append(add_positions(part.tokens, self.padding[name].expand(count, -1)))
            visible.append(
                part.tokens.new_ones(batch, count, dtype=torch.bool) if part.visible is None else part.visible
            )
            sizes[name] = count
        _check_batches(tokens, list(sizes))
        whole = torch.cat(visible, dim=1) if any(one is not None for one in given.values()) else None
        return InputTokens(torch.cat(tokens, dim=1), whole, sizes)


def _check_names(what: str, named: object, parts: nn.ModuleDict, *, whole: bool) -> None:
    """Raise OptionError unless ``named`` is a mapping with the names of all parts, or with ``whole`` False of some."""
    names = set(parts)
    fits = isinstance(named, Mapping) and (set(named) == names if whole else set(named) <= names)
    if not fits:
        raise OptionError(
            f"{what} of a joined input go by the names of its parts",
            expected=f"a mapping with {'all' if whole else 'some'} of {', '.join(sorted(names))}",
            got=", ".join(map(str, named)) if isinstance(named, Mapping) else short_repr(named),
            do=f"for example {{{sorted(names)[0]!r}: ...}}",
        )


def _check_batches(tokens: list[Tensor], names: list[str]) -> None:
    if len({one.shape[0] for one in tokens}) > 1:
        raise ShapeError(
            "the parts of an input have different batch sizes",
            expected="one batch size",
            got=", ".join(f"{name}: {one.shape[0]}" for name, one in zip(names, tokens, strict=True)),
            do="pass the same number of examples in each part",
        )


def _check_floats(inputs: Any, shape: tuple[int | str, ...]) -> None:
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


def _check_sizes(options: object, *names: str) -> None:
    for name in names:
        check_size(name, getattr(options, name))


def _check_shape(name: str, shape: object, *, axes: int) -> None:
    """Raise OptionError unless ``shape`` is a tuple of ``axes`` sizes."""
    if not isinstance(shape, tuple) or len(shape) != axes:
        example = (28, 28, 28)[:axes]
        raise OptionError(
            f"wrong {name}", expected=f"a tuple of {axes} integers", got=short_repr(shape), do=f"{name}={example}"
        )
    for size in shape:
        check_size(name, size)
