"""The common part of the two towers of a CLIP: hyperparameters, blocks, initial weights and names of weights.

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

from regard.errors import check_weights
from regard.fields import check_fields
from regard.layers import EncoderBlock, FeedForward, MultiHeadAttention, encoder_block
from regard.models.hyperparameters import ACTIVATIONS, depth_field, model_field, probability_field, size_field
from regard.models.weight_names import Row, attention_rows

LAYER_ROWS = (
    Row("encoder.layers.{n}.layer_norm1", "layers.{n}.attention_residual.norm"),
    *attention_rows("encoder.layers.{n}.self_attn.{side}_proj", "layers.{n}.attention", ("q", "k", "v", "out")),
    Row("encoder.layers.{n}.layer_norm2", "layers.{n}.feed_forward_residual.norm"),
    Row("encoder.layers.{n}.mlp.fc1", "layers.{n}.feed_forward.up"),
    Row("encoder.layers.{n}.mlp.fc2", "layers.{n}.feed_forward.down"),
)
"""Names of the weights of layers in Hugging Face files, and in a tower."""


@dataclass(frozen=True)
class ClipTowerConfig(ABC):
    """The hyperparameters that both towers have.

    Raises OptionError for values out of range.
    """

    width: int = size_field(512, "size of hidden states", "hidden_size")
    layers: int = depth_field(12, "number of layers", "num_hidden_layers")
    heads: int = size_field(8, "number of heads", "num_attention_heads", divides="width")
    inner: int = size_field(2048, "hidden size of the feed-forward layers", "intermediate_size")
    activation: str = model_field(
        "quick_gelu", "activation of the feed-forward layers", "hidden_act", stored_names=ACTIVATIONS
    )
    epsilon: float = model_field(1e-5, "epsilon of the layer norms", "layer_norm_eps", minimum=0.0)
    attention_dropout: float = probability_field(0.0, "dropout of attention weights", "attention_dropout")
    projection: int | None = size_field(
        512,
        "size of the embeddings that both towers project to; None is a tower without a projection",
        "projection_dim",
        read=lambda config, name: config.size(name, default=512),
    )

    model_name = "CLIP"

    def __post_init__(self) -> None:
        check_fields(self)
        check_weights(width=self.width, inner=self.inner)
        check_weights(width=self.width, projection=self.projection or 1)

    @abstractmethod
    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json, for ``transformers`` if it can compute the tower."""


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
