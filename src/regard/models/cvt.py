"""CvT, the convolutional vision Transformer: convolutions make the tokens of each stage, and queries, keys and values.

    in each stage:      h = norm(convolution(map)),  and in the last one a class token before them
        in each layer:  q, k, v = convolutional projections of norm(h)      ``layers.ConvolutionalProjection``
                        a  = h + MultiHead(q, k, v),    h' = a + FFN(norm(a))
    hidden = norm(h),   pooled = the class token, or the mean of hidden,   logits = W pooled + b

Wu et al. 2021, "CvT: introducing convolutions to vision transformers", sections 3.1 to 3.3 and table 2.
pixels (batch, channels, height, width) -> hidden (batch, [1 +] rows * columns, width of the last stage).

Keys and values have a stride of 2 in published models, so a query attends to a quarter of the tokens. The class token
takes part in attention without a convolution. Scores are divided by the square root of the width of the stage, as in
the published code, not of a head. There are no positions: convolutions see the edges of the picture.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import (
    LARGEST_SIZE,
    OptionError,
    ShapeError,
    check_count,
    check_flag,
    check_size,
    check_sizes,
    check_weights,
    short_repr,
)
from regard.fields import check_fields
from regard.layers import Dropout, FeedForward, MultiHeadAttention, PreNorm
from regard.layers.activation_checkpoint import CheckpointedBlock
from regard.layers.convolutional_projection import ConvolutionalProjection
from regard.layers.dropout import StochasticDepth
from regard.layers.input_checks import check_pixels
from regard.layers.patch_embedding import check_side_pair
from regard.layers.to_channels_last import to_channels_last
from regard.masks import Mask
from regard.models.config_file import MAX_LAYERS, ConfigFile
from regard.models.hyperparameters import model_field, probability_field, read_published, size_field, write_published
from regard.models.image_encoder import ImageEncoder, ImageOutput, refuse_mask
from regard.models.initial_weights import draw_weights
from regard.models.label_names import label_fields, labels_field
from regard.models.media_encoder import TokenGrid
from regard.models.weight_names import Row, WeightNames, vit_block_rows
from regard.positions.learned_grid import init_truncated_normal
from regard.tensors import is_traced

_MAX_STAGES = 16


@final
@explain_arguments
@dataclass(frozen=True)
class CvtConfig:
    """The hyperparameters of a CvT: tuples have a member for each stage. Defaults are CvT-13.

    Raises OptionError for values out of range.
    """

    picture_size: tuple[int, int] = model_field(
        (224, 224),
        "(height, width) in pixels of the pictures of the training; other sizes are read too",
        "image_size",
        check=check_side_pair,
    )
    channels: int = size_field(3, "channels of a picture", "num_channels")
    widths: tuple[int, ...] = size_field((64, 192, 384), "components of a token", "embed_dim")
    depths: tuple[int, ...] = size_field((1, 2, 10), "number of layers", "depth")
    heads: tuple[int, ...] = size_field((1, 3, 6), "number of heads; they divide the width", "num_heads")
    embedding_kernels: tuple[int, ...] = size_field(
        (7, 3, 3), "height and width of the convolution that makes the tokens", "patch_sizes"
    )
    embedding_strides: tuple[int, ...] = size_field((4, 2, 2), "its step", "patch_stride")
    embedding_paddings: tuple[int, ...] = model_field((2, 1, 1), "the zeros on each side of its input", "patch_padding")
    projection_kernels: tuple[int, ...] = size_field(
        (3, 3, 3), "height and width of the convolutions of queries, keys and values; odd", "kernel_qkv"
    )
    key_value_strides: tuple[int, ...] = size_field(
        (2, 2, 2), "step of the convolutions of keys and values", "stride_kv"
    )
    key_value_paddings: tuple[int, ...] = model_field((1, 1, 1), "the zeros on each side of their input", "padding_kv")
    inner_ratios: tuple[float, ...] = model_field(
        (4.0, 4.0, 4.0),
        "size of the inner feed-forward layer, in widths",
        "mlp_ratio",
        above=0.0,
        maximum=LARGEST_SIZE,
        write=lambda ratios: list(map(float, ratios)),
    )
    projection_biases: tuple[bool, ...] = model_field(
        (True, True, True), "whether the projections of queries, keys and values have a bias", "qkv_bias"
    )
    dropouts: tuple[float, ...] = probability_field(
        (0.0, 0.0, 0.0), "dropout of the tokens of a stage and of the output of each sublayer", "drop_rate"
    )
    attention_dropouts: tuple[float, ...] = probability_field(
        (0.0, 0.0, 0.0), "dropout of attention weights", "attention_drop_rate"
    )
    stochastic_depths: tuple[float, ...] = probability_field(
        (0.0, 0.0, 0.1),
        "probability of skipping a sublayer of the last layer of a stage in training; for the others it rises with the "
        "number of the layer in the stage, from 0",
        "drop_path_rate",
    )
    class_token: bool = model_field(True, "whether the last stage has a class token")
    deviation: float = model_field(0.02, "standard deviation of initial weights", "initializer_range", minimum=0.0)
    labels: tuple[str, ...] = labels_field("a model without a head and the norm before it")

    def __post_init__(self) -> None:
        check_fields(self)
        for name, values in vars(self).items():
            if isinstance(values, tuple) and name not in ("picture_size", "labels"):
                self._check_length(name, values)
        check_count("number of stages", len(self.depths), maximum=_MAX_STAGES)
        check_count("layers", self.layers, maximum=MAX_LAYERS)
        for stage in range(len(self.depths)):
            self._check_stage(stage)

    @property
    def layers(self) -> int:
        """The number of layers, over all stages."""
        return sum(self.depths)

    def inner_of(self, stage: int) -> int:
        """The size of the inner feed-forward layer of a stage."""
        return int(self.widths[stage] * float(self.inner_ratios[stage]))

    def skip_probabilities(self, stage: int) -> list[float]:
        """The probability of skipping a sublayer, for each layer of a stage: linear in its number in the stage."""
        depth, largest = self.depths[stage], float(self.stochastic_depths[stage])
        return [largest * number / max(depth - 1, 1) for number in range(depth)]

    def _check_length(self, name: str, values: tuple[Any, ...]) -> None:
        if not values or len(values) != len(self.depths):
            raise OptionError(
                f"wrong number of members in {name}",
                expected=f"{len(self.depths)}, one for each stage, as depths={self.depths} says",
                got=short_repr(values),
                do="pass as many as depths has",
            )

    def _check_stage(self, stage: int) -> None:
        width, heads, kernel = self.widths[stage], self.heads[stage], self.projection_kernels[stage]
        check_size("inner", self.inner_of(stage))
        check_weights(width=width, inner=self.inner_of(stage))
        before = self.channels if stage == 0 else self.widths[stage - 1]
        side = self.embedding_kernels[stage]
        check_weights(width=width, before=before, height=side, columns=side)
        if width % heads:
            raise OptionError(
                f"the width of stage {stage} is not divisible by its heads",
                expected="a multiple of heads",
                got=f"width={width}, heads={heads}",
                do="choose another number of heads",
            )
        if kernel % 2 == 0:
            raise OptionError(
                f"the convolution of queries in stage {stage} would change the size of the map",
                expected="odd projection_kernels, which have a token in their middle",
                got=f"projection_kernels={self.projection_kernels}",
                do="use 1, 3, 5 ..",
            )
        for name, kernels in {"embedding": self.embedding_kernels, "key_value": self.projection_kernels}.items():
            padding = getattr(self, f"{name}_paddings")[stage]
            if padding > kernels[stage] // 2:
                raise OptionError(
                    f"the padding of a convolution in stage {stage} is more than half of its kernel",
                    expected=f"at most {kernels[stage] // 2} in {name}_paddings",
                    got=str(padding),
                    do="use half of the kernel, without the remainder",
                )

    @classmethod
    def from_hugging_face(cls, config: ConfigFile) -> CvtConfig:
        """Read the config from a Hugging Face config.json. Raises CheckpointError for missing or unusable fields."""
        kernels = config.sizes("kernel_qkv", default=(3, 3, 3))
        stages = len(kernels)
        config.require("qkv_projection_method", ["dw_bn"] * stages, default=["dw_bn"] * stages)
        config.require("stride_q", [1] * stages, default=[1] * stages)
        config.require("padding_q", [kernel // 2 for kernel in kernels], default=[1] * stages)
        has_class_token = config.listed("cls_token", default=(False, False, True))[-1:] == (True,)
        config.require("cls_token", [False] * (stages - 1) + [has_class_token], default=[False, False, True])
        return read_published(cls, config, class_token=has_class_token)

    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``; of ``image_size`` it makes no use."""
        stages = len(self.depths)
        return {
            "architectures": ["CvtForImageClassification" if self.labels else "CvtModel"],
            "model_type": "cvt",
            **write_published(self),
            "cls_token": [False] * (stages - 1) + [self.class_token],
            "qkv_projection_method": ["dw_bn"] * stages,
            "padding_q": [kernel // 2 for kernel in self.projection_kernels],
            "stride_q": [1] * stages,
            **label_fields(self.labels),
        }


_NO_MASK_REASON = (
    "its convolutions mix neighbouring tokens before each stage and in each layer, so that hiding a token would not "
    "hide its part of the picture"
)
_EPSILON = 1e-5
"""Epsilon of all norms; the field of ``transformers`` for it has no effect."""
_ATTENTION = "encoder.stages.{path}.attention.attention"
_ROWS = (
    Row("encoder.stages.{n}.cls_token", "stages.{n}.class_token", tensors=True),
    Row("encoder.stages.{n}.embedding.convolution_embeddings.projection", "stages.{n}.embedding"),
    Row("encoder.stages.{n}.embedding.convolution_embeddings.normalization", "stages.{n}.embedding_norm"),
    *(
        Row(
            f"{_ATTENTION}.convolution_projection_{side}.convolution_projection.{stored}",
            f"stages.{{path}}.{side}.{name}",
        )
        for side in ("query", "key", "value")
        for stored, name in (("convolution", "convolution"), ("normalization", "norm"))
    ),
    *vit_block_rows("encoder.stages.{path}", "stages.{path}", "attention.projection_"),
    Row("layernorm", "norm"),
    Row("classifier", "head"),
)
"""Weight names in Hugging Face files, and in this model. A path names a layer: "0.layers.1"."""


@final
class CvtBlock(CheckpointedBlock):
    """One layer of a CvT: attention by convolutional projections, then feed-forward, each with a norm before it."""

    def __init__(self, config: CvtConfig, stage: int, *, skip: float) -> None:
        super().__init__()
        width, dropout, kernel = config.widths[stage], config.dropouts[stage], config.projection_kernels[stage]
        stride, padding = config.key_value_strides[stage], config.key_value_paddings[stage]
        self.query = ConvolutionalProjection(width, kernel, padding=kernel // 2)
        self.key = ConvolutionalProjection(width, kernel, stride=stride, padding=padding)
        self.value = ConvolutionalProjection(width, kernel, stride=stride, padding=padding)
        self.attention = MultiHeadAttention(
            width,
            config.heads[stage],
            mechanism_options={"scale": width**-0.5},
            dropout=config.attention_dropouts[stage],
            bias=config.projection_biases[stage],
            output_bias=True,
        )
        self.feed_forward = FeedForward(width, config.inner_of(stage), activation="gelu")
        self.attention_residual = PreNorm(nn.LayerNorm(width, eps=_EPSILON), dropout=dropout)
        self.feed_forward_residual = PreNorm(nn.LayerNorm(width, eps=_EPSILON), dropout=dropout)
        self.stochastic_depth = StochasticDepth(skip)

    def forward(
        self, tokens: Float[Tensor, "batch tokens width"], rows: int, columns: int
    ) -> Float[Tensor, "batch tokens width"]:
        """Transform tokens to the same shape: the tokens before a map, then the map's ``rows`` x ``columns`` tokens."""

        def attend(inner: Tensor) -> Tensor:
            before, plane = inner.split([inner.shape[1] - rows * columns, rows * columns], dim=1)
            projections = (self.query, self.key, self.value)
            sides = [torch.cat([before, projection(plane, rows, columns)], dim=1) for projection in projections]
            skipped: Tensor = self.stochastic_depth(self.attention(*sides))
            return skipped

        def transform(tokens: Tensor) -> Tensor:
            tokens = self.attention_residual(tokens, attend)
            output: Tensor = self.feed_forward_residual(
                tokens, lambda inner: self.stochastic_depth(self.feed_forward(inner))
            )
            return output

        return self.run_checkpointed(transform, tokens)


@final
class CvtStage(nn.Module):
    """The convolution that makes the tokens of a stage, and its layers."""

    def __init__(self, config: CvtConfig, number: int) -> None:
        super().__init__()
        width = config.widths[number]
        last = number + 1 == len(config.depths)
        self.window = (
            config.embedding_kernels[number],
            config.embedding_strides[number],
            config.embedding_paddings[number],
        )
        self.embedding = nn.Conv2d(config.channels if number == 0 else config.widths[number - 1], width, *self.window)
        self.embedding_norm = nn.LayerNorm(width, eps=_EPSILON)
        self.dropout = Dropout(config.dropouts[number])
        self.class_token = nn.Parameter(torch.empty(1, 1, width)) if last and config.class_token else None
        self.layers = nn.ModuleList(CvtBlock(config, number, skip=skip) for skip in config.skip_probabilities(number))

    def forward(self, plane: Float[Tensor, "batch channels _ _"]) -> Float[Tensor, "batch tokens width"]:
        """Compute the tokens of a stage, after the class token if there is one, from the map of the one before."""
        embedded = self.embedding(to_channels_last(plane))
        rows, columns = embedded.shape[2:]
        tokens = self.dropout(self.embedding_norm(embedded.flatten(2).transpose(1, 2)))
        if self.class_token is not None:
            tokens = torch.cat([self.class_token.expand(tokens.shape[0], -1, -1), tokens], dim=1)
        for layer in self.layers:
            tokens = layer(tokens, rows, columns)
        return tokens

    def count(self, side: int) -> int:
        """The rows, or columns, of tokens of a map of ``side`` rows, or columns; 0 or less if there are none."""
        kernel, stride, padding = self.window
        return (side + 2 * padding - kernel) // stride + 1

    @property
    def keys(self) -> ConvolutionalProjection:
        """The convolution of the keys of the first layer; all layers have the same sizes."""
        return cast("CvtBlock", self.layers[0]).key


@final
@explain_arguments
class Cvt(ImageEncoder):
    """A CvT with random initial weights; ``regard.load`` loads a trained one.

    It has no positions, so it reads pictures of any size that leaves a token and a key in each stage.
    """

    config: CvtConfig
    config_class = CvtConfig
    model_types = ("cvt",)
    no_rollout_reason = (
        "The keys of a CvT are convolutions of its tokens, which are fewer in each stage, so there is no rollout."
    )

    def __init__(self, config: CvtConfig) -> None:
        super().__init__(config)
        self.stages = nn.ModuleList(CvtStage(config, number) for number in range(len(config.depths)))
        self.norm = nn.LayerNorm(config.widths[-1], eps=_EPSILON) if config.labels else None
        self.head = nn.Linear(config.widths[-1], len(config.labels)) if config.labels else None
        self._init_weights()

    def forward(self, pixels: Tensor, *, mask: Mask | None = None, keep_layers: bool = False) -> ImageOutput:
        """Compute the hidden states of pictures (batch, channels, height, width).

        ``keep_layers`` returns the output of each stage in ``.layers``; their numbers of tokens and widths differ. In
        training, batch norm makes the pictures of a batch depend on each other. Raises ShapeError or DtypeError for
        pixels that do not fit, and RefusedError for a mask.
        """
        check_flag("keep_layers", keep_layers)
        refuse_mask(mask, "CvT", _NO_MASK_REASON)
        stages = self._stages()
        check_pixels(pixels, stages[0].embedding.weight, self.config.channels)
        height, width = pixels.shape[2:]
        if not is_traced():
            self._map_sizes(height, width)
        plane, kept = pixels, []
        for stage in stages:
            height, width = stage.count(height), stage.count(width)
            tokens = stage(plane)
            kept.append(tokens)
            plane = tokens[:, tokens.shape[1] - height * width :].transpose(1, 2).unflatten(2, (height, width))
        hidden = tokens if self.norm is None else self.norm(tokens)
        pooled = hidden[:, 0] if self.config.class_token else hidden.mean(dim=1)
        logits = None if self.head is None else self.head(pooled)
        return ImageOutput(hidden, pooled, logits, tuple(kept) if keep_layers else None)

    @property
    def width(self) -> int:
        """The number of components of a hidden state after the last layer."""
        return self.config.widths[-1]

    def token_grids(self, height: int, width: int) -> tuple[TokenGrid, ...]:
        """How tokens, and queries, lie over a picture of this size, for each attention layer.

        Raises ShapeError for a picture that is too small.
        """
        maps = self._map_sizes(height, width)
        return self._repeat([TokenGrid(*size, self._prefix(number)) for number, size in enumerate(maps)])

    def key_grids(self, height: int, width: int) -> tuple[TokenGrid, ...]:
        """How keys and values lie over a picture of this size, for each attention layer: fewer than the queries.

        Raises ShapeError for a picture that is too small.
        """
        maps = zip(self._stages(), self._map_sizes(height, width), strict=True)
        sizes = [(stage.keys.count(rows), stage.keys.count(columns)) for stage, (rows, columns) in maps]
        return self._repeat([TokenGrid(*size, self._prefix(number)) for number, size in enumerate(sizes)])

    @classmethod
    def make_weight_names(cls, config: CvtConfig) -> WeightNames:
        """Make the table of the names of weights in a file."""
        return WeightNames(_ROWS, prefix="cvt.", outer=("layernorm", "classifier") if config.labels else ())

    def _stages(self) -> list[CvtStage]:
        return list(cast("Iterable[CvtStage]", self.stages))

    def _prefix(self, stage: int) -> tuple[str, ...]:
        return ("class",) if self.config.class_token and stage + 1 == len(self.config.depths) else ()

    def _repeat(self, grids: list[TokenGrid]) -> tuple[TokenGrid, ...]:
        """The grids of stages, for each of their layers."""
        return tuple(grid for grid, depth in zip(grids, self.config.depths, strict=True) for _ in range(depth))

    def _map_sizes(self, height: int, width: int) -> list[tuple[int, int]]:
        """The rows and columns of tokens in each stage. Raises ShapeError if a stage has none, or no keys."""
        check_sizes(height=height, width=width)
        rows, columns, sizes = height, width, []
        for number, stage in enumerate(self._stages()):
            rows, columns = stage.count(rows), stage.count(columns)
            if min(rows, columns) < 1 or min(stage.keys.count(rows), stage.keys.count(columns)) < 1:
                raise ShapeError(
                    "the picture is too small",
                    expected="a picture that leaves a token and a key in each stage",
                    got=f"a picture of {height} x {width}: none in stage {number}",
                    do=f"resize it, for example to {self.picture_size[0]} x {self.picture_size[1]}",
                )
            sizes.append((rows, columns))
        return sizes

    def _init_weights(self) -> None:
        """Initialise as the published code does: truncated normal weights, biases of 0."""
        deviation = float(self.config.deviation)
        draw_weights(self, lambda weight: init_truncated_normal(weight, deviation), nn.Linear, nn.Conv2d)
        token = self._stages()[-1].class_token
        if token is not None:
            init_truncated_normal(token, deviation)


@explain_arguments
def cvt_13(labels: tuple[str, ...] = ()) -> Cvt:
    """CvT-13, untrained: 13 layers in stages of width 64, 192 and 384. Wu et al. 2021, table 2."""
    return Cvt(CvtConfig(labels=labels))


@explain_arguments
def cvt_21(labels: tuple[str, ...] = ()) -> Cvt:
    """CvT-21, untrained: 21 layers in stages of width 64, 192 and 384. Wu et al. 2021, table 2."""
    return Cvt(CvtConfig(depths=(1, 4, 16), labels=labels))
