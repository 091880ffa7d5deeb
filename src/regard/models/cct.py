"""CCT, the compact convolutional Transformer: an image encoder that trains from scratch on small data.

    h_0 = dropout(tokenizer(pixels) [+ positions])              ``layers.ConvolutionalTokenizer``
    a   = h + MultiHead(norm(h)),   h' = a + FFN(norm(a))       for each layer
    hidden = norm(h_L),   pooled = sum_i softmax(w . hidden + b)_i hidden_i,   logits = W pooled + b

Hassani et al. 2021, "Escaping the big data paradigm with compact Transformers", sections 3.1 to 3.3 and tables 1 and 2.
pixels (batch, channels, height, width) -> hidden (batch, rows * columns, width), logits (batch, labels).

In training, sublayers are skipped for random pictures (``layers.StochasticDepth``), more often in later layers. The
published code adds the output of the feed-forward layer to norm(a) instead of a; here it is the equation of the paper,
as in a ViT. The numbers of weights are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from jaxtyping import Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import check_flag, check_weights
from regard.fields import check_fields, declared_fields
from regard.layers import ACTIVATIONS, Dropout, FeedForward, MultiHeadAttention, PreNorm
from regard.layers.activation_checkpoint import CheckpointedBlock
from regard.layers.convolutional_tokenizer import MAX_CONVOLUTIONS, ConvolutionalTokenizer
from regard.layers.dropout import StochasticDepth
from regard.layers.patch_embedding import check_side_pair
from regard.layers.sequence_pooling import SequencePooling
from regard.masks import Mask
from regard.models.config_file import ConfigFile
from regard.models.hyperparameters import depth_field, model_field, probability_field, size_field
from regard.models.image_encoder import ImageEncoder, ImageOutput, refuse_mask
from regard.models.initial_weights import draw_weights
from regard.models.label_names import labels_field
from regard.models.layer_mechanism import mechanism_field, mechanism_options_field, options_at_depth, share_projections
from regard.models.media_encoder import TokenGrid
from regard.models.run_layers import run_layers
from regard.models.weight_names import WeightNames, same_names
from regard.positions import LearnedGrid, Sinusoidal
from regard.positions.learned_grid import init_truncated_normal

MODEL_TYPE = "regard-cct"
"""The ``model_type`` of its folders, which only regard reads."""
POSITIONS = ("learned", "sinusoidal", "none")
_POSITION_DEVIATION = 10.0
"""The deviation of initial positions, in deviations of other weights: 0.2 and 0.02 in the published code."""
_NO_MASK_REASON = (
    "its convolutions mix the pixels of neighbouring tokens, so that hiding a token would not hide "
    "its part of the picture"
)


@final
@explain_arguments
@dataclass(frozen=True)
class CctConfig:
    """The hyperparameters of a CCT. Defaults are CCT-7/3x1 for pictures of 32 x 32 pixels.

    Raises OptionError for values out of range.
    """

    picture_size: tuple[int, int] = model_field(
        (32, 32), "(height, width) in pixels of the pictures that positions are learned for", check=check_side_pair
    )
    channels: int = size_field(3, "number of channels of a picture")
    width: int = size_field(256, "size of hidden states")
    layers: int = depth_field(7, "number of layers")
    heads: int = size_field(4, "number of heads", divides="width")
    inner: int = size_field(512, "hidden size of the feed-forward layers")
    convolutions: int = size_field(
        1, "number of convolutions of the tokenizer; each halves the map", maximum=MAX_CONVOLUTIONS
    )
    kernel_size: int = size_field(3, "height and width of a convolution")
    stride: int = size_field(1, "step of a convolution, in pixels")
    tokenizer_width: int = size_field(64, "channels between the convolutions of the tokenizer")
    positions: str = model_field(
        "learned",
        'what is added to tokens: "learned" vectors, "sinusoidal" ones of the number of the token, or "none"',
        choices=POSITIONS,
    )
    activation: str = model_field("gelu", "activation of the feed-forward layers", choices=ACTIVATIONS)
    epsilon: float = model_field(1e-5, "epsilon of the layer norms", minimum=0.0)
    dropout: float = probability_field(
        0.0, "dropout of the embedding, and inside and after the feed-forward layers and attention"
    )
    attention_dropout: float = probability_field(0.1, "dropout of attention weights")
    stochastic_depth: float = probability_field(
        0.1,
        "probability of skipping a sublayer of the last layer in training; for the others it rises with the number of "
        "the layer, from 0",
    )
    projection_bias: bool = model_field(False, "whether the projections to queries, keys and values have biases")
    deviation: float = model_field(0.02, "standard deviation of initial weights of linear layers", minimum=0.0)
    mechanism: str = mechanism_field()
    mechanism_options: Mapping[str, Any] = mechanism_options_field()
    labels: tuple[str, ...] = labels_field()

    def __post_init__(self) -> None:
        check_fields(self)
        check_weights(width=self.width, inner=self.inner)

    def skip_probability(self, layer: int) -> float:
        """The probability of skipping a sublayer of a layer: linear in its number."""
        return float(self.stochastic_depth) * layer / max(self.layers - 1, 1)


@final
class CctBlock(CheckpointedBlock):
    """One layer of a CCT: attention, then feed-forward, each with a norm before it and stochastic depth."""

    def __init__(self, config: CctConfig, depth: int) -> None:
        super().__init__()
        width, epsilon, dropout = config.width, config.epsilon, config.dropout
        self.attention = MultiHeadAttention(
            width,
            config.heads,
            mechanism=config.mechanism,
            mechanism_options=options_at_depth(config.mechanism, config.mechanism_options, depth),
            dropout=config.attention_dropout,
            bias=config.projection_bias,
            output_bias=True,
        )
        self.feed_forward = FeedForward(width, config.inner, activation=config.activation, dropout=dropout)
        self.attention_residual = PreNorm(nn.LayerNorm(width, eps=epsilon), dropout=dropout)
        self.feed_forward_residual = PreNorm(nn.LayerNorm(width, eps=epsilon), dropout=dropout)
        self.stochastic_depth = StochasticDepth(config.skip_probability(depth))

    def forward(self, tokens: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens width"]:
        """Transform tokens to the same shape."""
        return self.run_checkpointed(self._transform, tokens)

    def _transform(self, tokens: Tensor) -> Tensor:
        tokens = self.attention_residual(tokens, lambda inner: self.stochastic_depth(self.attention(inner)))
        output: Tensor = self.feed_forward_residual(
            tokens, lambda inner: self.stochastic_depth(self.feed_forward(inner))
        )
        return output


@final
@explain_arguments
class Cct(ImageEncoder):
    """A CCT with random initial weights; ``regard.load`` loads a trained one.

    It reads pictures of any size: learned positions are interpolated for other sizes than ``picture_size``, and
    sinusoidal ones count the tokens row by row.
    """

    config: CctConfig
    config_class = CctConfig
    model_types = (MODEL_TYPE,)

    def __init__(self, config: CctConfig) -> None:
        super().__init__(config)
        self.tokenizer = ConvolutionalTokenizer(
            config.channels,
            config.width,
            convolutions=config.convolutions,
            kernel_size=config.kernel_size,
            stride=config.stride,
            inner=config.tokenizer_width,
        )
        self.positions = self._make_positions()
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(CctBlock(config, depth) for depth in range(config.layers))
        share_projections(self.layers)
        self.norm = nn.LayerNorm(config.width, eps=config.epsilon)
        self.pooling = SequencePooling(config.width)
        self.head = nn.Linear(config.width, len(config.labels)) if config.labels else None
        deviation = float(config.deviation)  # the weights of the tokenizer are drawn already
        draw_weights(self, lambda weight: init_truncated_normal(weight, deviation), nn.Linear)

    def forward(self, pixels: Tensor, *, mask: Mask | None = None, keep_layers: bool = False) -> ImageOutput:
        """Compute the hidden states of pictures, and the logits if there is a head.

        Args:
            pixels: (batch, channels, height, width), normalised, of any height and width.
            mask: None; a mask is refused, since the tokenizer mixes the pixels of tokens.
            keep_layers: return the embedding and the output of each layer too, in ``.layers``.

        Raises ShapeError or DtypeError for pixels that do not fit, and RefusedError for a mask.
        """
        check_flag("keep_layers", keep_layers)
        refuse_mask(mask, "CCT", _NO_MASK_REASON)
        tokens, layers = run_layers(self._embed(pixels), self.layers, keep=keep_layers)
        hidden = self.norm(tokens)
        pooled = self.pooling(hidden)
        logits = None if self.head is None else self.head(pooled)
        return ImageOutput(hidden, pooled, logits, layers)

    def token_grids(self, height: int, width: int) -> tuple[TokenGrid, ...]:
        """How tokens lie over a picture of this size, the same in each layer. Raises OptionError for no size."""
        return (TokenGrid(*self.tokenizer.grid(height, width)),) * self.config.layers

    def pooling_weights(self, output: ImageOutput) -> Float[Tensor, "batch tokens"]:
        """The weights of the sequence pooling."""
        return self.pooling.weights(output.hidden)

    @classmethod
    def read_config(cls, config: ConfigFile) -> CctConfig:
        """Read the hyperparameters, without labels, from config.json."""
        config.size_pair("picture_size")
        for declared in declared_fields(CctConfig):
            if declared.kind is int:  # a file has all sizes
                config.size(declared.name)
        return config.parse_dataclass(CctConfig)

    @classmethod
    def make_weight_names(cls, config: CctConfig) -> WeightNames:
        """Make the table of the names of weights in a file: they are the names of the modules."""
        return WeightNames(
            same_names("tokenizer.{path}", "positions", "layers.{path}", "norm", "pooling.score", "head")
        )

    def _embed(self, pixels: Tensor) -> Float[Tensor, "batch tokens width"]:
        tokens = self.tokenizer(pixels)
        if isinstance(self.positions, LearnedGrid):
            tokens = tokens + self.positions(*self.tokenizer.grid(*pixels.shape[2:]))
        elif self.positions is not None:
            tokens = tokens + self.positions(tokens.shape[1])
        embedded: Tensor = self.dropout(tokens)
        return embedded

    def _make_positions(self) -> LearnedGrid | Sinusoidal | None:
        config = self.config
        if config.positions == "none":
            return None
        if config.positions == "sinusoidal":
            return Sinusoidal(config.width)
        grid = self.tokenizer.grid(*config.picture_size)
        return LearnedGrid(*grid, config.width, deviation=_POSITION_DEVIATION * float(config.deviation))


@explain_arguments
def cct_2_3x2(labels: tuple[str, ...] = (), *, picture_size: tuple[int, int] = (32, 32)) -> Cct:
    """CCT-2/3x2, untrained: 2 layers of width 128, 2 convolutions of 3 x 3. Hassani et al. 2021, section 3.3."""
    return Cct(CctConfig(picture_size, width=128, layers=2, heads=2, inner=128, convolutions=2, labels=labels))


@explain_arguments
def cct_7_3x1(labels: tuple[str, ...] = (), *, picture_size: tuple[int, int] = (32, 32)) -> Cct:
    """CCT-7/3x1, untrained: 7 layers of width 256, a convolution of 3 x 3. Hassani et al. 2021, section 3.3."""
    return Cct(CctConfig(picture_size, labels=labels))
