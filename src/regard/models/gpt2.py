"""GPT-2: a causal language model with learned positions.

    h_0 = tokens[ids] + positions
    a   = h + MultiHead(norm(h)),   h' = a + FFN(norm(a))            for each layer, causal
    logits = norm(h_L) tokens^T

Radford et al. 2019, "Language models are unsupervised multitask learners", section 2.3: norms before the sublayers and
after the last, and initial weights of residual layers scaled by 1 / sqrt(number of them). The tanh form of GELU is from
the published code. ids (batch, length) -> hidden (batch, length, width), logits (batch, length, vocabulary).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard import masks
from regard.arguments import explain_arguments
from regard.errors import (
    OptionError,
    ShapeError,
    check_choice,
    check_count,
    check_dropout,
    check_flag,
    check_number,
    check_size,
    check_weights,
)
from regard.layers import DecoderBlock, Dropout, FeedForward, MultiHeadAttention, PreNorm
from regard.masks import Mask
from regard.mechanisms import DotProduct
from regard.models.activation_names import ACTIVATIONS, activation_to_hugging_face
from regard.models.causal_language_model import CausalLanguageModel
from regard.models.causal_state import CausalOutput
from regard.models.check_token_ids import check_token_positions
from regard.models.config_file import MAX_LAYERS, ConfigFile
from regard.models.initial_weights import init_from_normal
from regard.models.special_ids import check_special_ids, join_end_ids, read_end_ids, read_special_id
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

    ``vocabulary`` tokens, ``max_length`` positions; ``inner`` is the hidden size of the feed-forward layers, None is
    4 * width. ``dropout`` is applied to the output of sublayers, ``embedding_dropout`` to the embedding,
    ``attention_dropout`` to attention weights. ``scale_by_depth`` divides the scores of layer n by n as well, counted
    from 1. ``tied`` shares the embedding with the output layer; ``deviation`` is the standard deviation of the initial
    weights. ``end_ids`` are the tokens that end a text. Raises OptionError for values out of range.
    """

    vocabulary: int = 50257
    width: int = 768
    layers: int = 12
    heads: int = 12
    inner: int | None = None
    max_length: int = 1024
    activation: str = "gelu_tanh"
    epsilon: float = 1e-5
    dropout: float = 0.1
    embedding_dropout: float = 0.1
    attention_dropout: float = 0.1
    scale_by_depth: bool = False
    tied: bool = True
    deviation: float = 0.02
    pad_id: int | None = None
    start_id: int | None = None
    end_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("vocabulary", "width", "heads", "max_length"):
            check_size(name, getattr(self, name))
        check_size("inner", self.inner_width)
        check_count("layers", self.layers, most=MAX_LAYERS)
        check_weights(vocabulary=self.vocabulary, width=self.width)
        check_special_ids(self.vocabulary, pad_id=self.pad_id, start_id=self.start_id, end_ids=self.end_ids)
        for name in ("dropout", "embedding_dropout", "attention_dropout"):
            check_dropout(getattr(self, name))
        for name in ("scale_by_depth", "tied"):
            check_flag(name, getattr(self, name))
        check_number("epsilon", self.epsilon, least=0.0)
        check_number("deviation", self.deviation, least=0.0)
        check_choice("activation of a GPT-2", self.activation, set(ACTIVATIONS.values()))
        if self.width % self.heads:
            raise OptionError(
                "width is not divisible by heads",
                expected="a multiple of heads",
                got=f"width={self.width}, heads={self.heads}",
                do="GPT-2's heads are of equal size; choose another number of heads",
            )

    @property
    def inner_width(self) -> int:
        """The hidden size of the feed-forward layers."""
        return 4 * self.width if self.inner is None else self.inner

    @classmethod
    def from_hugging_face(cls, config: ConfigFile) -> Gpt2Config:
        """Read the config from a Hugging Face config.json. Raises CheckpointError for missing or unusable fields."""
        config.require("add_cross_attention", False, default=False)
        config.require("scale_attn_weights", True, default=True)
        return config.build(
            cls,
            vocabulary=config.size("vocab_size"),
            width=config.size("n_embd"),
            layers=config.size("n_layer"),
            heads=config.size("n_head", divides="n_embd"),
            inner=None if config.fields.get("n_inner") is None else config.size("n_inner"),
            max_length=config.size("n_positions"),
            activation=ACTIVATIONS[config.choice("activation_function", ACTIVATIONS, default="gelu_new")],
            epsilon=config.number("layer_norm_epsilon", default=1e-5),
            dropout=config.number("resid_pdrop", default=0.1, below=1.0),
            embedding_dropout=config.number("embd_pdrop", default=0.1, below=1.0),
            attention_dropout=config.number("attn_pdrop", default=0.1, below=1.0),
            scale_by_depth=config.flag("scale_attn_by_inverse_layer_idx", default=False),
            tied=config.flag("tie_word_embeddings", default=True),
            deviation=config.number("initializer_range", default=0.02),
            pad_id=read_special_id(config, "pad_token_id"),
            start_id=read_special_id(config, "bos_token_id", default=50256),
            end_ids=read_end_ids(config, default=(50256,)),
        )

    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``."""
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "vocab_size": self.vocabulary,
            "n_embd": self.width,
            "n_layer": self.layers,
            "n_head": self.heads,
            "n_inner": self.inner,
            "n_positions": self.max_length,
            "activation_function": (
                "gelu_new" if self.activation == "gelu_tanh" else activation_to_hugging_face(self.activation)
            ),
            "layer_norm_epsilon": self.epsilon,
            "resid_pdrop": self.dropout,
            "embd_pdrop": self.embedding_dropout,
            "attn_pdrop": self.attention_dropout,
            "scale_attn_by_inverse_layer_idx": self.scale_by_depth,
            "tie_word_embeddings": self.tied,
            "initializer_range": self.deviation,
            "pad_token_id": self.pad_id,
            "bos_token_id": self.start_id,
            "eos_token_id": join_end_ids(self.end_ids),
        }


@final
@explain_arguments
class Gpt2(CausalLanguageModel):
    """A GPT-2 with random initial weights; ``regard.load`` loads a trained one."""

    config: Gpt2Config
    config_class = Gpt2Config
    has_absolute_positions = True

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__(config)
        self.token_embedding = nn.Embedding(config.vocabulary, config.width)
        self.positions = Learned(config.max_length, config.width)
        self.dropout = Dropout(config.embedding_dropout)
        self.layers = nn.ModuleList(_make_layer(config, depth) for depth in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=config.epsilon)
        self.output = nn.Linear(config.width, config.vocabulary, bias=False)
        self._init_weights()
        self.tie()

    def forward(
        self,
        ids: Tensor,
        *,
        mask: Mask | None = None,
        positions: Tensor | None = None,
        keep_layers: bool = False,
    ) -> CausalOutput:
        """Compute the logits of the token after each position. Arguments as for ``CausalLanguageModel.forward``.

        ``positions`` (batch, length) are those of the tokens in their texts; None counts from the first column. Pass
        them for texts that are padded on the left, or packed behind one another.

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
        vectors = functional.embedding(positions.to(ids.device), self.positions.weight)
        embedded: Tensor = self.dropout(self.token_embedding(ids) + vectors)
        return embedded

    @property
    def layer_masks(self) -> Sequence[Mask]:
        """The causal mask of each layer."""
        return (masks.causal(),) * self.config.layers

    @property
    def max_tokens(self) -> int:
        """The number of positions, the maximum length of a text."""
        return self.config.max_length

    @property
    def weight_names(self) -> WeightNames:
        """The table of the model's weight names in a file; ``attn.bias`` is an old name of the causal mask."""
        return WeightNames(
            ROWS,
            prefix="transformer.",
            outer=("lm_head",),
            ignored_patterns=(r"h\.\d+\.attn\.(masked_)?bias",),
            heads=("score.", "multiple_choice_head.", "classifier."),
            tied_weights=self.tied_weights,
        )

    def _init_weights(self) -> None:
        """Initialise weights as published: those of residual layers are smaller by sqrt(number of residual layers)."""
        deviation = float(self.config.deviation)
        init_from_normal(self, deviation)
        nn.init.normal_(self.positions.weight, std=deviation)
        for block in self._blocks:
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
