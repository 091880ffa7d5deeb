"""The encoder that a ViT and a DeiT have in common: patches, tokens before them, positions and pre-norm blocks.

    h_0 = dropout([before; patches(pixels)] + positions)       before: the class token and, in a DeiT, another one
    a   = h + MultiHead(norm(h)),   h' = a + FFN(norm(a))       for each layer
    hidden = norm(h_L)

Dosovitskiy et al. 2021, "An image is worth 16x16 words", section 3.1 and equations 1 to 4.
pixels (batch, channels, height, width) -> hidden (batch, tokens, width); the tokens of patches are row by row.
Positions are learned for pictures of one size, and interpolated for any other (``positions.LearnedGrid``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Self, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import OptionError, check_flag, check_weights
from regard.fields import check_fields
from regard.layers import ACTIVATIONS, Dropout, EncoderBlock, FeedForward, MultiHeadAttention, PatchEmbedding, PreNorm
from regard.layers.patch_embedding import check_patches, check_side_pair
from regard.masks import Mask
from regard.models.config_file import ConfigFile
from regard.models.hyperparameters import ACTIVATIONS as HUGGING_FACE_ACTIVATIONS
from regard.models.hyperparameters import (
    depth_field,
    model_field,
    name_in_file,
    probability_field,
    read_published,
    size_field,
    write_published,
)
from regard.models.image_encoder import ImageEncoder
from regard.models.initial_weights import draw_weights
from regard.models.label_names import label_fields, labels_field
from regard.models.layer_mechanism import mechanism_field, mechanism_options_field, options_at_depth, share_projections
from regard.models.media_encoder import TokenGrid
from regard.models.run_encoder import run_encoder
from regard.models.weight_names import Row, vit_block_rows
from regard.positions import LearnedGrid
from regard.positions.learned_grid import init_truncated_normal
from regard.validation import check_mask

ROWS = (
    Row("embeddings.cls_token", "class_token", tensors=True),
    Row("embeddings.position_embeddings", "positions.weight", tensors=True),
    Row("embeddings.patch_embeddings.projection", "patches"),
    *vit_block_rows("encoder.layer.{n}", "layers.{n}", "attention."),
    Row("encoder.layer.{n}.attention.{path}", "layers.{n}.attention.{path}"),
    Row("encoder.layer.{n}.intermediate.gate", "layers.{n}.feed_forward.gate"),
    Row("layernorm", "norm"),
    Row("pooler.dense", "pooler"),
)
"""Weight names in Hugging Face files, and in this model; the names of mechanisms and gates are in our own folders."""
HEADS = ("decoder.", "embeddings.mask_token")
"""Weights of masked image modelling, which are skipped."""
OWN_TYPE = "regard-"
"""The prefix of the ``model_type`` of a folder with another mechanism, which no published config.json has."""
_OWN_FIELDS = ("mechanism", "mechanism_options", "activation")
"""The fields of such a folder that are not published ones."""


@dataclass(frozen=True)
class VisionTransformerConfig(ABC):
    """The hyperparameters that a ViT and a DeiT have in common. Defaults are ViT base with patches of 16 x 16.

    Raises OptionError for values out of range.
    """

    picture_size: tuple[int, int] = model_field(
        (224, 224),
        "(height, width) in pixels of the pictures that positions are learned for",
        "image_size",
        check=check_side_pair,
    )
    patch_size: tuple[int, int] = model_field(
        (16, 16),
        "(height, width) in pixels of a patch; a picture has a whole number of them",
        "patch_size",
        check=check_side_pair,
    )
    channels: int = size_field(3, "number of channels of a picture", "num_channels")
    width: int = size_field(768, "size of hidden states", "hidden_size")
    layers: int = depth_field(12, "number of layers", "num_hidden_layers")
    heads: int = size_field(12, "number of heads", "num_attention_heads", divides="width")
    inner: int = size_field(3072, "hidden size of the feed-forward layers", "intermediate_size")
    activation: str = model_field("gelu", "activation of the feed-forward layers", choices=ACTIVATIONS)
    epsilon: float = model_field(1e-12, "epsilon of the layer norms", "layer_norm_eps", minimum=0.0)
    dropout: float = probability_field(
        0.0, "dropout of the embedding and of the output of each sublayer", "hidden_dropout_prob"
    )
    attention_dropout: float = probability_field(0.0, "dropout of attention weights", "attention_probs_dropout_prob")
    projection_bias: bool = model_field(
        True, "whether the projections to queries, keys and values have biases", "qkv_bias"
    )
    deviation: float = model_field(0.02, "standard deviation of initial weights", "initializer_range", minimum=0.0)
    mechanism: str = mechanism_field()
    mechanism_options: Mapping[str, Any] = mechanism_options_field()
    labels: tuple[str, ...] = labels_field()
    pooler: bool = model_field(
        False, "whether there is a pooler, tanh(W h + b) of the class token; only without labels"
    )

    def __post_init__(self) -> None:
        check_fields(self)
        check_weights(width=self.width, inner=self.inner)
        check_patches(self.picture_size, self.patch_size)
        if self.labels and self.pooler:
            raise OptionError(
                "a model has a pooler or a head of labels, as published",
                expected="labels=(), or pooler=False",
                got=f"{len(self.labels)} labels, and pooler=True",
                do="leave the pooler out: the head reads the class token",
            )

    @property
    def grid(self) -> tuple[int, int]:
        """The rows and columns of patches that positions are learned for."""
        return self.picture_size[0] // self.patch_size[0], self.picture_size[1] // self.patch_size[1]

    @abstractmethod
    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json.

        With another mechanism than dot_product, or an activation that ``transformers`` lacks, the ``model_type`` is one
        that only regard reads.
        """

    @final
    def write_fields(self, model_type: str, architecture: str) -> dict[str, Any]:
        """The fields of a config.json; ``architecture`` is the name of the class of ``transformers``."""
        fields = {"architectures": [architecture], "model_type": model_type, **write_published(self)}
        fields |= label_fields(self.labels)
        own = {name: getattr(self, name) for name in _OWN_FIELDS}
        is_plain = self.mechanism == "dot_product" and not self.mechanism_options
        if is_plain and self.activation in HUGGING_FACE_ACTIVATIONS.values():
            return fields | {"hidden_act": name_in_file(HUGGING_FACE_ACTIVATIONS, self.activation)}
        del fields["architectures"]
        return fields | own | {"model_type": OWN_TYPE + model_type, "mechanism_options": dict(self.mechanism_options)}

    @classmethod
    def from_hugging_face(cls, config: ConfigFile) -> Self:
        """Read the config, without labels, from a Hugging Face config.json, or from ours.

        Raises CheckpointError for unusable fields.
        """
        if config.model_type.startswith(OWN_TYPE):
            own = config.read_fields(cls, _OWN_FIELDS)
        else:
            names = HUGGING_FACE_ACTIVATIONS
            own = {"activation": names[config.choice("hidden_act", names, default="gelu")]}
        read = read_published(cls, config, **own)
        config.require("head_dim", read.width // read.heads, default=read.width // read.heads)
        if config.fields.get("pooler_output_size") is not None:
            config.require("pooler_output_size", read.width, default=read.width)
        config.require("pooler_act", "tanh", default="tanh")
        return read


class VisionTransformer(ImageEncoder, ABC):
    """The encoder of a ViT or a DeiT, with an optional pooler and an optional ``head``."""

    prefix: ClassVar[tuple[str, ...]]
    """The names of the tokens before the patches."""

    config: VisionTransformerConfig
    optional_parts: ClassVar[Mapping[str, str]] = MappingProxyType({"pooler": "pooler.weight"})

    @abstractmethod
    def __init__(self, config: VisionTransformerConfig) -> None:
        super().__init__(config)
        self.class_token = nn.Parameter(torch.empty(1, 1, config.width))
        self.patches = PatchEmbedding(config.channels, config.width, config.patch_size)
        self.positions = LearnedGrid(
            *config.grid, config.width, prefix=len(self.prefix), deviation=float(config.deviation)
        )
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(_make_layer(config, depth) for depth in range(config.layers))
        share_projections(self.layers)
        self.norm = nn.LayerNorm(config.width, eps=config.epsilon)
        self.pooler = nn.Linear(config.width, config.width) if config.pooler else None
        self.head = nn.Linear(config.width, len(config.labels)) if config.labels else None

    @final
    def token_grids(self, height: int, width: int) -> tuple[TokenGrid, ...]:
        """How tokens lie over a picture of this size, the same in each layer.

        Raises ShapeError for a side that is no multiple of the side of a patch.
        """
        return (TokenGrid(*self.patches.grid(height, width), self.prefix),) * self.config.layers

    def token_cells(self, height: int, width: int) -> tuple[tuple[float, float], ...]:
        """The (height, width) of a patch, for each layer."""
        del height, width
        return (self.config.patch_size,) * self.config.layers

    @abstractmethod
    def _prefix_tokens(self) -> list[Tensor]:
        """The tokens before the patches, each (1, 1, width)."""

    @final
    def _encode(
        self, pixels: Tensor, mask: Mask | None, *, keep_layers: bool
    ) -> tuple[Float[Tensor, "batch tokens width"], tuple[Tensor, ...] | None]:
        """Compute the hidden states after the last norm, with ``keep_layers`` also the states of all layers before."""
        check_flag("keep_layers", keep_layers)
        check_mask(mask)
        tokens, kept = run_encoder(self._embed(pixels), self.layers, mask, keep=keep_layers)
        return self.norm(tokens), kept

    @final
    def _embed(self, pixels: Tensor) -> Float[Tensor, "batch tokens width"]:
        patches = self.patches(pixels)
        rows, columns = (side // patch for side, patch in zip(pixels.shape[2:], self.config.patch_size, strict=True))
        before = [token.expand(patches.shape[0], -1, -1) for token in self._prefix_tokens()]
        embedded: Tensor = self.dropout(torch.cat([*before, patches], dim=1) + self.positions(rows, columns))
        return embedded

    @final
    def _pool(self, hidden: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch width"]:
        """The vector of the class token, through the pooler if there is one."""
        pooled = hidden[:, 0]
        return pooled if self.pooler is None else torch.tanh(self.pooler(pooled))

    @final
    def _init_weights(self) -> None:
        """Initialise as the published code does: truncated normal weights, biases of 0. Positions are drawn already."""
        deviation = float(self.config.deviation)
        draw_weights(self, lambda weight: init_truncated_normal(weight, deviation), nn.Linear, PatchEmbedding)
        for token in self._prefix_tokens():
            init_truncated_normal(token, deviation)


def _make_layer(config: VisionTransformerConfig, depth: int) -> EncoderBlock:
    return EncoderBlock(
        attention=MultiHeadAttention(
            config.width,
            config.heads,
            mechanism=config.mechanism,
            mechanism_options=options_at_depth(config.mechanism, config.mechanism_options, depth),
            dropout=config.attention_dropout,
            bias=config.projection_bias,
            output_bias=True,
        ),
        feed_forward=FeedForward(config.width, config.inner, activation=config.activation),
        attention_residual=PreNorm(nn.LayerNorm(config.width, eps=config.epsilon), dropout=config.dropout),
        feed_forward_residual=PreNorm(nn.LayerNorm(config.width, eps=config.epsilon), dropout=config.dropout),
    )
