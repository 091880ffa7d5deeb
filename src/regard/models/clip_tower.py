"""What the two towers of a CLIP have in common: hyperparameters, blocks, initial weights and names of weights.

    a = h + MultiHead(norm(h)),   h' = a + FFN(norm(a))       for each layer, with FFN(x) = act(x W_1 + b_1) W_2 + b_2
    act(x) = x sigmoid(1.702 x)                               "quick_gelu", unless the config says otherwise

Radford et al. 2021, "Learning transferable visual models from natural language supervision", section 2.4. Hidden states
(batch, tokens, width) -> the same shape.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import nn

from regard.errors import OptionError, check_choice, check_count, check_dropout, check_number, check_size, check_weights
from regard.layers import EncoderBlock, FeedForward, MultiHeadAttention, encoder_block
from regard.models.activation_names import ACTIVATIONS, activation_to_hugging_face
from regard.models.config_file import MAX_LAYERS, ConfigFile
from regard.models.weight_names import Row

LAYER_ROWS = (
    Row("encoder.layers.{n}.layer_norm1", "layers.{n}.attention_residual.norm"),
    Row("encoder.layers.{n}.self_attn.q_proj", "layers.{n}.attention.query_projection"),
    Row("encoder.layers.{n}.self_attn.k_proj", "layers.{n}.attention.key_projection"),
    Row("encoder.layers.{n}.self_attn.v_proj", "layers.{n}.attention.value_projection"),
    Row("encoder.layers.{n}.self_attn.out_proj", "layers.{n}.attention.output_projection"),
    Row("encoder.layers.{n}.layer_norm2", "layers.{n}.feed_forward_residual.norm"),
    Row("encoder.layers.{n}.mlp.fc1", "layers.{n}.feed_forward.up"),
    Row("encoder.layers.{n}.mlp.fc2", "layers.{n}.feed_forward.down"),
)
"""Names of the weights of layers in Hugging Face files, and in a tower."""


@dataclass(frozen=True)
class ClipTowerConfig(ABC):
    """The hyperparameters that both towers have.

    Args:
        width: size of hidden states.
        layers: number of layers.
        heads: number of heads.
        inner: hidden size of the feed-forward layers.
        activation: that of the feed-forward layers.
        epsilon: that of the layer norms.
        attention_dropout: dropout of attention weights.
        projection: size of the embeddings that both towers project to; None is a tower without a projection.

    Raises OptionError for values out of range.
    """

    width: int = 512
    layers: int = 12
    heads: int = 8
    inner: int = 2048
    activation: str = "quick_gelu"
    epsilon: float = 1e-5
    attention_dropout: float = 0.0
    projection: int | None = 512

    def __post_init__(self) -> None:
        for name in ("width", "heads", "inner"):
            check_size(name, getattr(self, name))
        check_count("layers", self.layers, most=MAX_LAYERS)
        check_weights(width=self.width, inner=self.inner)
        check_choice("activation of a CLIP", self.activation, set(ACTIVATIONS.values()))
        check_number("epsilon", self.epsilon, least=0.0)
        check_dropout(self.attention_dropout)
        if self.projection is not None:
            check_size("projection", self.projection)
            check_weights(width=self.width, projection=self.projection)
        if self.width % self.heads:
            raise OptionError(
                "width is not divisible by heads",
                expected="a multiple of heads",
                got=f"width={self.width}, heads={self.heads}",
                do="choose another number of heads",
            )

    @abstractmethod
    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json, for ``transformers`` if it can compute the tower."""


def read_tower_fields(config: ConfigFile, *, width: int, heads: int, inner: int) -> dict[str, Any]:
    """Read what both towers have from their config; ``width``, ``heads`` and ``inner`` are the defaults of the type.

    Raises CheckpointError for unusable fields.
    """
    return {
        "width": config.size("hidden_size", default=width),
        "layers": config.size("num_hidden_layers", default=12),
        "heads": config.size("num_attention_heads", default=heads),
        "inner": config.size("intermediate_size", default=inner),
        "activation": ACTIVATIONS[config.choice("hidden_act", ACTIVATIONS, default="quick_gelu")],
        "epsilon": config.number("layer_norm_eps", default=1e-5),
        "attention_dropout": config.number("attention_dropout", default=0.0, below=1.0),
        "projection": config.size("projection_dim", default=512),
    }


def write_tower_fields(config: ClipTowerConfig) -> dict[str, Any]:
    """The fields of a config.json that both towers have."""
    size = {} if config.projection is None else {"projection_dim": config.projection}
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.inner,
        "hidden_act": activation_to_hugging_face(config.activation),
        "layer_norm_eps": config.epsilon,
        "attention_dropout": config.attention_dropout,
        **size,
    }


def make_layers(config: ClipTowerConfig) -> nn.ModuleList:
    """Make the layers of a tower, with initial weights."""
    return nn.ModuleList(_make_layer(config) for _ in range(config.layers))


def make_projection(config: ClipTowerConfig) -> nn.Linear | None:
    """Make the projection of a tower to embeddings, with initial weights; None if it has none."""
    if config.projection is None:
        return None
    projection = nn.Linear(config.width, config.projection, bias=False)
    nn.init.normal_(projection.weight, std=config.width**-0.5)
    return projection


def _make_layer(config: ClipTowerConfig) -> EncoderBlock:
    """Make a layer, initialised as in the published code: what is added to h is smaller in a deeper tower."""
    block = encoder_block(
        config.width,
        config.heads,
        config.inner,
        norm="pre",
        activation=config.activation,
        attention_dropout=config.attention_dropout,
        epsilon=config.epsilon,
    )
    attention, feed_forward = block.attention, block.feed_forward
    assert isinstance(attention, MultiHeadAttention)
    assert isinstance(feed_forward, FeedForward)
    inside, added = config.width**-0.5, config.width**-0.5 * (2 * config.layers) ** -0.5
    for linear, deviation in (
        (attention.query_projection, inside),
        (attention.key_projection, inside),
        (attention.value_projection, inside),
        (attention.output_projection, added),
        (feed_forward.up, (2 * config.width) ** -0.5),
        (feed_forward.down, added),
    ):
        assert linear is not None, "the attention is not shared"
        nn.init.normal_(linear.weight, std=deviation)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)
    return block
