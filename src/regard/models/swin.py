"""Swin Transformer: an image encoder whose tokens attend within windows, which are shifted in every second layer.

    h = norm(patches(pixels)) [+ positions]
    in each stage, for each block, with windows of M x M tokens, shifted by M // 2 in every second block:
        a  = h + join(MultiHead(split(norm(h)), bias B))
        h  = a + FFN(norm(a))
    between stages: h = merge(h), half as many rows and columns, of twice the width
    hidden = norm(h),   pooled = mean of hidden,   logits = W pooled + b

Liu et al. 2021, "Swin Transformer: hierarchical vision transformer using shifted windows", sections 3.1 to 3.3. pixels
(batch, channels, height, width) -> hidden (batch, tokens, 2^(stages - 1) width).

Windows are entries of a batch (``layers.window_partition``), since a kernel computes many short sequences faster than
one long sequence whose mask divides it. The relative position bias B is ``positions.Relative2d``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast, final

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.arguments import explain_arguments
from regard.errors import LARGEST_SIZE, OptionError, check_count, check_flag, check_size, check_sizes, check_weights
from regard.fields import check_fields
from regard.layers import Dropout, FeedForward, MultiHeadAttention, PreNorm
from regard.layers.activation_checkpoint import CheckpointedBlock
from regard.layers.dropout import StochasticDepth
from regard.layers.input_checks import check_pixels
from regard.layers.patch_embedding import PatchEmbedding, check_side_pair
from regard.layers.patch_merging import PatchMerging
from regard.layers.window_partition import WindowPartition
from regard.masks import Mask
from regard.masks.memo import Memo
from regard.models.config_file import MAX_LAYERS, ConfigFile
from regard.models.hyperparameters import (
    ACTIVATIONS,
    model_field,
    probability_field,
    read_published,
    size_field,
    write_published,
)
from regard.models.image_encoder import ImageEncoder, ImageOutput, refuse_mask
from regard.models.initial_weights import draw_weights
from regard.models.label_names import label_fields, labels_field
from regard.models.media_encoder import TokenGrid
from regard.models.weight_names import Row, WeightNames, vit_block_rows
from regard.positions import LearnedGrid, Relative2d
from regard.tensors import is_traced

_MAX_STAGES = 16
_NO_MASK_REASON = (
    "its layers attend within windows, and its stages merge tokens, so no token is hidden from the others after the "
    "first stage"
)


@final
@explain_arguments
@dataclass(frozen=True)
class SwinConfig:
    """The hyperparameters of a Swin. Defaults are Swin-T for pictures of 224 x 224 pixels.

    Raises OptionError for values out of range.
    """

    picture_size: tuple[int, int] = model_field(
        (224, 224), "height and width of the pictures of the training, in pixels", "image_size", check=check_side_pair
    )
    patch_size: tuple[int, int] = model_field(
        (4, 4), "height and width of a patch, in pixels", "patch_size", check=check_side_pair
    )
    channels: int = size_field(3, "channels of a picture", "num_channels")
    width: int = size_field(96, "components of a token in the first stage; each stage doubles them", "embed_dim")
    depths: tuple[int, ...] = size_field((2, 2, 6, 2), "layers in each stage", "depths")
    heads: tuple[int, ...] = size_field((3, 6, 12, 24), "heads in each stage; they divide its width", "num_heads")
    window: int = size_field(7, "rows and columns of a window, in tokens", "window_size")
    inner_ratio: float = model_field(
        4.0, "size of the inner feed-forward layer, in widths", "mlp_ratio", above=0.0, maximum=LARGEST_SIZE
    )
    activation: str = model_field(
        "gelu", "activation of the feed-forward layers", "hidden_act", stored_names=ACTIVATIONS
    )
    attention_bias: bool = model_field(
        True, "whether the projections of queries, keys and values have a bias", "qkv_bias"
    )
    absolute_positions: bool = model_field(
        False,
        "whether a trained vector is added to each patch, beside the relative positions",
        "use_absolute_embeddings",
    )
    epsilon: float = model_field(
        1e-5, "epsilon of the norms of the layers; those of patches have 1e-5", "layer_norm_eps", minimum=0.0
    )
    dropout: float = probability_field(0.0, "dropout of the embedding and of each sublayer", "hidden_dropout_prob")
    attention_dropout: float = probability_field(0.0, "dropout of attention weights", "attention_probs_dropout_prob")
    stochastic_depth: float = probability_field(
        0.1,
        "probability of skipping a sublayer of the last layer in training; for the others it rises with the number of "
        "the layer, from 0",
        "drop_path_rate",
    )
    deviation: float = model_field(0.02, "standard deviation of initial weights", "initializer_range", minimum=0.0)
    labels: tuple[str, ...] = labels_field()

    model_name = "Swin"

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.depths or len(self.heads) != len(self.depths):
            raise OptionError(
                f"wrong number of sizes in {'heads' if self.depths else 'depths'}",
                expected=str(len(self.depths) or "1 or more"),
                got=str(len(self.heads) if self.depths else 0),
                do="depths and heads have a number for each stage",
            )
        check_count("number of stages", len(self.depths), maximum=_MAX_STAGES)
        check_count("layers", self.layers, maximum=MAX_LAYERS)
        check_size("inner", self.inner_of(self.width))
        check_weights(width=self.last_width, inner=self.inner_of(self.last_width))
        for number, heads in enumerate(self.heads):
            if self.width * 2**number % heads:
                raise OptionError(
                    f"the width of stage {number} is not divisible by its heads",
                    expected="a multiple of heads",
                    got=f"width={self.width * 2**number}, heads={heads}",
                    do="the heads of a Swin are of equal size; choose another number of heads",
                )

    @property
    def layers(self) -> int:
        """The number of layers, over all stages."""
        return sum(self.depths)

    @property
    def last_width(self) -> int:
        """The width of the last stage."""
        return self.width * 2 ** (len(self.depths) - 1)

    def inner_of(self, width: int) -> int:
        """The size of the inner feed-forward layer of tokens of ``width``."""
        return int(float(self.inner_ratio) * width)

    def skip_probabilities(self, stage: int) -> list[float]:
        """The probability of skipping a sublayer, for each layer of a stage: linear in the number of the layer."""
        first = sum(self.depths[:stage])
        last = max(self.layers - 1, 1)
        return [float(self.stochastic_depth) * (first + number) / last for number in range(self.depths[stage])]

    @classmethod
    def from_hugging_face(cls, config: ConfigFile) -> SwinConfig:
        """Read the config from a Hugging Face config.json. Raises CheckpointError for missing or unusable fields."""
        return read_published(cls, config)

    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``."""
        name = "SwinForImageClassification" if self.labels else "SwinModel"
        return {"architectures": [name], "model_type": "swin", **write_published(self), **label_fields(self.labels)}


_STORED_TABLE = "encoder.layers.{path}.attention.self.relative_position_bias_table"
_ROWS = (
    Row("embeddings.patch_embeddings.projection", "patches"),
    Row("embeddings.norm", "embedding_norm"),
    Row("embeddings.position_embeddings", "positions.weight", tensors=True),
    Row(_STORED_TABLE, "stages.{path}.attention.position.weight", tensors=True),
    *vit_block_rows("encoder.layers.{path}", "stages.{path}", "self."),
    Row("encoder.layers.{n}.downsample.norm", "stages.{n}.merging.norm"),
    Row("encoder.layers.{n}.downsample.reduction", "stages.{n}.merging.reduction"),
    Row("layernorm", "norm"),
    Row("classifier", "head"),
)
"""Weight names in Hugging Face files, and in this model. A path names a block: "0.blocks.1"."""


@final
class SwinBlock(CheckpointedBlock):
    """One layer of a Swin: attention within windows, then feed-forward, each with a norm before it."""

    def __init__(self, config: SwinConfig, width: int, heads: int, *, skip: float) -> None:
        super().__init__()
        epsilon, dropout = config.epsilon, config.dropout
        self.attention = MultiHeadAttention(
            width,
            heads,
            position=Relative2d(heads, config.window, deviation=config.deviation),
            dropout=config.attention_dropout,
            bias=config.attention_bias,
            output_bias=True,
        )
        self.feed_forward = FeedForward(width, config.inner_of(width), activation=config.activation)
        self.attention_residual = PreNorm(nn.LayerNorm(width, eps=epsilon), dropout=dropout)
        self.feed_forward_residual = PreNorm(nn.LayerNorm(width, eps=epsilon), dropout=dropout)
        self.stochastic_depth = StochasticDepth(skip)

    def forward(
        self, tokens: Float[Tensor, "batch tokens width"], windows: WindowPartition, mask: Mask | None
    ) -> Float[Tensor, "batch tokens width"]:
        """Transform the tokens of a map to the same shape; ``mask`` is over the tokens of each window."""

        def attend(inner: Tensor) -> Tensor:
            mixed = windows.join(self.attention(windows.split(inner), mask=mask))
            skipped: Tensor = self.stochastic_depth(mixed)
            return skipped

        def transform(tokens: Tensor) -> Tensor:
            tokens = self.attention_residual(tokens, attend)
            output: Tensor = self.feed_forward_residual(
                tokens, lambda inner: self.stochastic_depth(self.feed_forward(inner))
            )
            return output

        return self.run_checkpointed(transform, tokens)


@final
class SwinStage(nn.Module):
    """The blocks of one resolution, and the merging of tokens after them, if there is a next stage."""

    def __init__(self, config: SwinConfig, number: int) -> None:
        super().__init__()
        width, heads, skips = config.width * 2**number, config.heads[number], config.skip_probabilities(number)
        self.window = config.window
        self.blocks = nn.ModuleList(SwinBlock(config, width, heads, skip=skip) for skip in skips)
        self.merging = PatchMerging(width) if number + 1 < len(config.depths) else None
        self._masks = Memo()

    def forward(self, tokens: Float[Tensor, "batch tokens width"], rows: int, columns: int) -> Tensor:
        """Transform the tokens of a map of ``rows`` x ``columns``, and merge them if there is a next stage."""
        for windows, block in zip(self.windows(rows, columns), self.blocks, strict=True):
            tokens = block(tokens, windows, self._find_mask(windows, tokens.shape[0]))
        return tokens if self.merging is None else self.merging(tokens, rows, columns)

    def windows(self, rows: int, columns: int) -> tuple[WindowPartition, ...]:
        """The windows of each block: shifted by half a window in every second one."""
        shifts = [self.window // 2 if number % 2 else 0 for number in range(len(self.blocks))]
        return tuple(WindowPartition.of(rows, columns, window=self.window, shift=shift) for shift in shifts)

    def _find_mask(self, windows: WindowPartition, pictures: int) -> Mask | None:
        """The mask of shifted windows. It is kept with its tile map, since all calls for one size need the same."""
        if windows.shift == 0 or is_traced():
            return windows.mask(pictures)
        return self._masks.get_or_compute((windows, pictures), lambda: windows.mask(pictures))


@final
@explain_arguments
class Swin(ImageEncoder):
    """A Swin with random initial weights; ``regard.load`` loads a trained one.

    It reads pictures of any size: incomplete patches, incomplete windows and odd maps are padded with zeros at the
    right and at the bottom, as in ``transformers``, and tokens attend to the padding of their window. Absolute
    positions, where a model has them, are interpolated for other sizes than ``picture_size`` (bicubic).
    """

    config: SwinConfig
    config_class = SwinConfig
    model_types = ("swin",)
    no_rollout_reason = "The tokens of a Swin are merged from stage to stage, so there is no rollout."

    def __init__(self, config: SwinConfig) -> None:
        super().__init__(config)
        self.patches = PatchEmbedding(config.channels, config.width, config.patch_size)
        self.embedding_norm = nn.LayerNorm(config.width)
        self.positions = _make_positions(config) if config.absolute_positions else None
        self.dropout = Dropout(config.dropout)
        self.stages = nn.ModuleList(SwinStage(config, number) for number in range(len(config.depths)))
        self.norm = nn.LayerNorm(config.last_width, eps=config.epsilon)
        self.head = nn.Linear(config.last_width, len(config.labels)) if config.labels else None
        self._init_weights()

    def forward(self, pixels: Tensor, *, mask: Mask | None = None, keep_layers: bool = False) -> ImageOutput:
        """Compute the hidden states of pictures (batch, channels, height, width).

        ``keep_layers`` returns the embedding and the output of each stage, after merging, in ``.layers``: their numbers
        of tokens and widths differ. Raises ShapeError or DtypeError for pixels that do not fit, and RefusedError for a
        mask.
        """
        check_flag("keep_layers", keep_layers)
        refuse_mask(mask, "Swin", _NO_MASK_REASON)
        tokens, (rows, columns) = self._embed(pixels)
        kept = [tokens]
        for stage in self.stages:
            tokens = stage(tokens, rows, columns)
            rows, columns = _halve(rows), _halve(columns)
            kept.append(tokens)
        hidden = self.norm(tokens)
        pooled = hidden.mean(dim=1)
        logits = None if self.head is None else self.head(pooled)
        return ImageOutput(hidden, pooled, logits, tuple(kept) if keep_layers else None)

    @property
    def width(self) -> int:
        """The number of components of a hidden state after the last layer."""
        return self.config.last_width

    def token_grids(self, height: int, width: int) -> tuple[TokenGrid, ...]:
        """How tokens lie over a picture of this size, for each attention layer.

        They belong to the whole map; ``windows`` says which of them are in which window.
        """
        return tuple(TokenGrid(windows.rows, windows.columns) for windows in self.windows(height, width))

    def token_cells(self, height: int, width: int) -> tuple[tuple[float, float], ...]:
        """The (height, width) in pixels of a token in each layer: a patch, and twice as much after each merging."""
        cell, cells = self.config.patch_size, []
        grids = self.token_grids(height, width)
        for before, grid in zip(grids[:1] + grids, grids, strict=False):
            cell = cell if grid == before else (2 * cell[0], 2 * cell[1])
            cells.append(cell)
        return tuple(cells)

    def windows(self, height: int, width: int) -> tuple[WindowPartition, ...]:
        """The windows of each attention layer for a picture of this size, in the order of their calls.

        A layer sees each window as an entry of its batch: entry ``picture * n + w`` is window w of n. Its token i is
        cell ``windows[layer].cells[w, i]`` of the map, y * columns + x, or padding where that is -1.
        """
        rows, columns = self._map_size(height, width)
        found: list[WindowPartition] = []
        for stage in cast("Iterable[SwinStage]", self.stages):
            found += stage.windows(rows, columns)
            rows, columns = _halve(rows), _halve(columns)
        return tuple(found)

    @classmethod
    def make_weight_names(cls, config: SwinConfig) -> WeightNames:
        """Make the table of the names of weights in a file. Files of old versions also hold indices of the windows."""
        return WeightNames(
            _ROWS,
            prefix="swin.",
            outer=("classifier",) if config.labels else (),
            ignored_patterns=(r"encoder\.layers\.\d+\.blocks\.\d+\.attention\.self\.relative_position_index",),
            heads=("decoder.", "embeddings.mask_token"),
        )

    def _embed(self, pixels: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Compute the tokens of the patches (batch, rows * columns, width), and the size of their map."""
        check_pixels(pixels, self.patches.weight, self.config.channels)
        height, width = pixels.shape[2:]
        rows, columns = self._map_size(height, width)
        below, beside = (count * side for count, side in zip((rows, columns), self.config.patch_size, strict=True))
        if (below, beside) != (height, width):
            pixels = functional.pad(pixels, (0, beside - width, 0, below - height))
        tokens = self.embedding_norm(self.patches(pixels))
        if self.positions is not None:
            tokens = tokens + self.positions(rows, columns)
        return self.dropout(tokens), (rows, columns)

    def _map_size(self, height: int, width: int) -> tuple[int, int]:
        """The rows and columns of the patches of a picture; the last ones may be incomplete."""
        check_sizes(height=height, width=width)
        rows, columns = (-(-side // patch) for side, patch in zip((height, width), self.config.patch_size, strict=True))
        return rows, columns

    def _init_weights(self) -> None:
        """Initialise matrices from a normal distribution and biases with 0.

        The published code cuts the distribution at +-2, which is 100 standard deviations.
        """
        deviation = float(self.config.deviation)
        draw_weights(self, lambda weight: nn.init.normal_(weight, std=deviation), nn.Linear, PatchEmbedding)


def _make_positions(config: SwinConfig) -> LearnedGrid:
    """Make the vectors of the whole patches of a picture of the training."""
    rows, columns = (max(1, side // patch) for side, patch in zip(config.picture_size, config.patch_size, strict=True))
    return LearnedGrid(rows, columns, config.width, deviation=config.deviation)


def _halve(side: int) -> int:
    """The side of a map after merging 2 x 2 tokens; an odd one is padded."""
    return (side + 1) // 2


@explain_arguments
def swin_tiny(labels: tuple[str, ...] = ()) -> Swin:
    """Swin-T, untrained: 12 layers, width 96. Liu et al. 2021, section 3.3."""
    return Swin(SwinConfig(stochastic_depth=0.2, labels=labels))


@explain_arguments
def swin_small(labels: tuple[str, ...] = ()) -> Swin:
    """Swin-S, untrained: 24 layers, width 96. Liu et al. 2021, section 3.3."""
    return Swin(SwinConfig(depths=(2, 2, 18, 2), stochastic_depth=0.3, labels=labels))


@explain_arguments
def swin_base(labels: tuple[str, ...] = ()) -> Swin:
    """Swin-B, untrained: 24 layers, width 128. Liu et al. 2021, section 3.3."""
    config = SwinConfig(width=128, depths=(2, 2, 18, 2), heads=(4, 8, 16, 32), stochastic_depth=0.5, labels=labels)
    return Swin(config)
