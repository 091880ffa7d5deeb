"""GPT-2: a causal language model with learned positions.

    h_0 = tokens[ids] + positions
    a   = h + MultiHead(norm(h)),   h' = a + FFN(norm(a))            for each layer, causal
    logits = norm(h_L) tokens^T

Radford et al. 2019, "Language models are unsupervised multitask learners", section 2.3: norms before the sublayers and
after the last, and initial weights of residual layers scaled by 1 / sqrt(number of them). The tanh form of GELU is from
the published code. ids (batch, length) -> hidden (batch, length, width), logits (batch, length, vocabulary).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import ShapeError, check_size, check_weights
from regard.fields import check_fields
from regard.layers import DecoderBlock, Dropout, FeedForward, MultiHeadAttention, PreNorm
from regard.masks import Mask
from regard.mechanisms import DotProduct
from regard.models.causal_language_model import CausalLanguageModel, tied_output_weights
from regard.models.causal_state import CausalOutput
from regard.models.check_token_ids import check_token_positions
from regard.models.config_file import ConfigFile
from regard.models.hyperparameters import (
    ACTIVATIONS,
    depth_field,
    model_field,
    probability_field,
    read_published,
    size_field,
    write_published,
)
from regard.models.initial_weights import init_from_normal
from regard.models.special_ids import end_ids_field, special_id_field
from regard.models.weight_names import Row, WeightNames
from regard.positions import Learned
from regard.tensors import least_and_greatest

ROWS = (
    Row("wte", "token_embedding"),
    Row("wpe", "positions"),
    Row("h.{n}.ln_1", "layers.{n}.attention_residual.norm"),
    Row(
        "h.{n}.attn.c_attn",
        (
            "layers.{n}.attention.query_projection",
            "layers.{n}.attention.key_projection",
            "layers.{n}.attention.value_projection",
        ),
        transposed=True,
    ),
    Row("h.{n}.attn.c_proj", "layers.{n}.attention.output_projection", transposed=True),
    Row("h.{n}.ln_2", "layers.{n}.feed_forward_residual.norm"),
    Row("h.{n}.mlp.c_fc", "layers.{n}.feed_forward.up", transposed=True),
    Row("h.{n}.mlp.c_proj", "layers.{n}.feed_forward.down", transposed=True),
    Row("ln_f", "norm"),
    Row("lm_head", "output"),
)
"""Weight names in Hugging Face files, whose matrices are (in, out), and in this model."""


@final
@explain_arguments
@dataclass(frozen=True)
class Gpt2Config:
    """The hyperparameters of a GPT-2. Defaults are the smallest published model, of 124 million weights.

    Raises OptionError for values out of range.
    """

    vocabulary: int = size_field(50257, "number of tokens", "vocab_size", required=True)
    width: int = size_field(768, "size of hidden states", "n_embd", required=True)
    layers: int = depth_field(12, "number of layers", "n_layer", required=True)
    heads: int = size_field(12, "number of heads", "n_head", required=True, divides="width")
    inner: int | None = size_field(None, "hidden size of the feed-forward layers; None is 4 * width", "n_inner")
    max_length: int = size_field(1024, "number of positions", "n_positions", required=True)
    activation: str = model_field(
        "gelu_tanh", "activation of the feed-forward layers", "activation_function", stored_names=ACTIVATIONS
    )
    epsilon: float = model_field(1e-5, "epsilon of the layer norms", "layer_norm_epsilon", minimum=0.0)
    dropout: float = probability_field(0.1, "dropout of the output of sublayers", "resid_pdrop")
    embedding_dropout: float = probability_field(0.1, "dropout of the embedding", "embd_pdrop")
    attention_dropout: float = probability_field(0.1, "dropout of attention weights", "attn_pdrop")
    scale_by_depth: bool = model_field(
        False,
        "whether the scores of layer n are divided by n as well, counted from 1",
        "scale_attn_by_inverse_layer_idx",
    )
    tied: bool = model_field(True, "whether the output layer shares the embedding", "tie_word_embeddings")
    deviation: float = model_field(0.02, "standard deviation of initial weights", "initializer_range", minimum=0.0)
    pad_id: int | None = special_id_field("the padding token", "pad_token_id")
    start_id: int | None = special_id_field("the start token", "bos_token_id", absent=50256)
    end_ids: tuple[int, ...] = end_ids_field((), absent=(50256,))

    model_name = "GPT-2"

    def __post_init__(self) -> None:
        check_fields(self)
        check_size("inner", self.inner_width)
        check_weights(vocabulary=self.vocabulary, width=self.width)

    @property
    def inner_width(self) -> int:
        """The hidden size of the feed-forward layers."""
        return 4 * self.width if self.inner is None else self.inner

    @classmethod
    def from_hugging_face(cls, config: ConfigFile) -> Gpt2Config:
        """Read the config from a Hugging Face config.json. Raises CheckpointError for missing or unusable fields."""
        config.require("add_cross_attention", False, default=False)
        config.require("scale_attn_weights", True, default=True)
        return read_published(cls, config)

    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``."""
        return {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", **write_published(self)}


@final
@explain_arguments
class Gpt2(CausalLanguageModel):
    """A GPT-2 with random initial weights; ``regard.load`` loads a trained one."""

    config: Gpt2Config
    config_class = Gpt2Config
    model_types = ("gpt2",)
    has_absolute_positions = True

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__(config)
        self.positions = Learned(config.max_length, config.width)
        self.dropout = Dropout(config.embedding_dropout)
        layers = (_make_layer(config, depth) for depth in range(config.layers))
        self._add_layers(layers, nn.LayerNorm(config.width, eps=config.epsilon))

    def forward(
        self,
        ids: Tensor,
        *,
        mask: Mask | None = None,
        positions: Tensor | None = None,
        keep_layers: bool = False,
    ) -> CausalOutput:
        """Compute the logits of the token after each position. Arguments as for ``CausalLanguageModel.forward``.

        ``positions`` (batch, length) count the tokens in their texts; None counts from the first column. Pass
        them for texts that are padded on the left, or packed.

        Raises ShapeError for more tokens than positions, OptionError for ids outside the vocabulary.
        """
        if positions is None:
            return super().forward(ids, mask=mask, keep_layers=keep_layers)
        self.check_ids(ids)
        check_token_positions(positions, ids, self.config.max_length)
        return self.transform(self.embed(ids, positions), mask, keep_layers=keep_layers)

    def embed(
        self, ids: Int[Tensor, "batch length"], positions: Int[Tensor, "#batch length"]
    ) -> Float[Tensor, "batch length width"]:
        """Embed checked token ids at ``positions`` (batch or 1, length) of their texts."""
        _, last = least_and_greatest(positions) if positions.numel() else (0, 0)
        if last >= self.config.max_length:
            raise ShapeError(
                "not enough learned positions",
                expected=f"at most {self.config.max_length} tokens",
                got=f"a token at position {last}, counted from 0",
                do="shorten the text (truncation is never automatic), or use a model with a larger max_length",
            )
        embedded: Tensor = self.dropout(self.token_embedding(ids) + self.positions.at(positions))
        return embedded

    @classmethod
    def make_weight_names(cls, config: Gpt2Config) -> WeightNames:
        """Make the table of the names of weights in a file; ``attn.bias`` is an old name of the causal mask."""
        return WeightNames(
            ROWS,
            prefix="transformer.",
            outer=("lm_head",),
            ignored_patterns=(r"h\.\d+\.attn\.(masked_)?bias",),
            heads=("score.", "multiple_choice_head.", "classifier."),
            tied_weights=tied_output_weights(config),
        )

    def _init_weights(self) -> None:
        """Initialise weights as published: in residual layers smaller by sqrt(number of residual layers)."""
        deviation = float(self.config.deviation)
        init_from_normal(self, deviation)
        nn.init.normal_(self.positions.weight, std=deviation)
        for block in self._blocks:
            assert isinstance(block.attention, MultiHeadAttention), "the layers of GPT-2 attend"
            assert isinstance(block.feed_forward, FeedForward), "the layers of GPT-2 have no experts"
            for last in (block.attention.output_projection, block.feed_forward.down):
                nn.init.normal_(last.weight, std=deviation * (2 * self.config.layers) ** -0.5)


def _make_layer(config: Gpt2Config, depth: int) -> DecoderBlock:
    """Build the layer with ``depth`` layers below it."""
    head_dim = config.width // config.heads
    scale = head_dim**-0.5 / (depth + 1 if config.scale_by_depth else 1)
    return DecoderBlock(
        attention=MultiHeadAttention(
            config.width,
            config.heads,
            mechanism=DotProduct(heads=config.heads, head_dim=head_dim, scale=scale, dropout=config.attention_dropout),
        ),
        feed_forward=FeedForward(config.width, config.inner_width, activation=config.activation),
        attention_residual=PreNorm(nn.LayerNorm(config.width, eps=config.epsilon), dropout=config.dropout),
        feed_forward_residual=PreNorm(nn.LayerNorm(config.width, eps=config.epsilon), dropout=config.dropout),
    )


_END = 50256
"""The token <|endoftext|> of the published vocabulary, which begins and ends a text."""


@explain_arguments
def gpt2_small() -> Gpt2:
    """GPT-2 small, untrained: 12 layers of width 768. Radford et al. 2019, table 2."""
    return Gpt2(Gpt2Config(start_id=_END, end_ids=(_END,)))


@explain_arguments
def gpt2_medium() -> Gpt2:
    """GPT-2 medium, untrained: 24 layers of width 1,024. Radford et al. 2019, table 2."""
    return Gpt2(Gpt2Config(width=1024, layers=24, heads=16, start_id=_END, end_ids=(_END,)))


@explain_arguments
def gpt2_large() -> Gpt2:
    """GPT-2 large, untrained: 36 layers of width 1,280. Radford et al. 2019, table 2."""
    return Gpt2(Gpt2Config(width=1280, layers=36, heads=20, start_id=_END, end_ids=(_END,)))


@explain_arguments
def gpt2_xl() -> Gpt2:
    """GPT-2 XL, untrained: 48 layers of width 1,600. Radford et al. 2019, table 2."""
    return Gpt2(Gpt2Config(width=1600, layers=48, heads=25, start_id=_END, end_ids=(_END,)))
