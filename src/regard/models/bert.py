"""BERT: a text encoder, with its masked-language head if there is one.

    h_0 = norm(tokens[ids] + positions + segments)
    a   = norm(h + MultiHead(h, h)),   h' = norm(a + FFN(a))         for each layer
    pooled = tanh(W h_L[first token] + b)
    logits = head(h_L)                                               ``masked_language_head``

Devlin et al. 2019, "BERT: pre-training of deep bidirectional transformers", section 3 and figure 2; the pooler and the
layer norm epsilon of 1e-12 are from the published code. ids (batch, length) -> hidden (batch, length, width), logits
(batch, length, vocabulary).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.arguments import explain_arguments
from regard.errors import (
    OptionError,
    ShapeError,
    check_choice,
    check_count,
    check_flag,
    check_number,
    check_size,
    check_weights,
)
from regard.layers import Dropout, EncoderBlock, FeedForward, MultiHeadAttention, PostNorm
from regard.masks import Mask
from regard.models.activation_names import ACTIVATIONS, activation_to_hugging_face
from regard.models.check_token_ids import check_token_ids, check_token_positions
from regard.models.config_file import MAX_LAYERS, ConfigFile
from regard.models.initial_weights import init_from_normal
from regard.models.masked_language_head import MaskedLanguageHead
from regard.models.masked_language_model import MaskedLanguageModel, tied_head_weights
from regard.models.weight_names import Row, WeightNames
from regard.positions import Learned
from regard.validation import check_dropout

ROWS = (
    Row("embeddings.word_embeddings", "token_embedding"),
    Row("embeddings.position_embeddings", "positions"),
    Row("embeddings.token_type_embeddings", "segments"),
    Row("embeddings.LayerNorm", "norm"),
    Row("encoder.layer.{n}.attention.self.query", "layers.{n}.attention.query_projection"),
    Row("encoder.layer.{n}.attention.self.key", "layers.{n}.attention.key_projection"),
    Row("encoder.layer.{n}.attention.self.value", "layers.{n}.attention.value_projection"),
    Row("encoder.layer.{n}.attention.output.dense", "layers.{n}.attention.output_projection"),
    Row("encoder.layer.{n}.attention.output.LayerNorm", "layers.{n}.attention_residual.norm"),
    Row("encoder.layer.{n}.intermediate.dense", "layers.{n}.feed_forward.up"),
    Row("encoder.layer.{n}.output.dense", "layers.{n}.feed_forward.down"),
    Row("encoder.layer.{n}.output.LayerNorm", "layers.{n}.feed_forward_residual.norm"),
    Row("pooler.dense", "pooler"),
)
_HEAD_ROWS = (
    Row("cls.predictions.transform.dense", "head.transform"),
    Row("cls.predictions.transform.LayerNorm", "head.norm"),
)
_TIED_ROW, _UNTIED_ROW = Row("cls.predictions", "head.output"), Row("cls.predictions.decoder", "head.output")
"""Weight names in Hugging Face files, and in this model."""


@final
@explain_arguments
@dataclass(frozen=True)
class BertConfig:
    """The hyperparameters of a BERT. Defaults are BERT base, uncased.

    ``vocabulary`` tokens, ``max_length`` positions, ``segments`` token types; ``inner`` is the hidden size of the
    feed-forward layers; ``deviation`` is the standard deviation of the initial weights; ``epsilon`` is that of layer
    norm. ``pooler`` and ``head`` say whether there is a pooler and a masked-language head; ``tied``, whether the output
    layer of the head shares the matrix of the embedding. Raises OptionError for values out of range.
    """

    vocabulary: int = 30522
    width: int = 768
    layers: int = 12
    heads: int = 12
    inner: int = 3072
    max_length: int = 512
    segments: int = 2
    activation: str = "gelu"
    epsilon: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = 0.1
    deviation: float = 0.02
    pad_id: int = 0
    pooler: bool = True
    head: bool = False
    tied: bool = True

    def __post_init__(self) -> None:
        for name in ("vocabulary", "width", "heads", "inner", "max_length", "segments"):
            check_size(name, getattr(self, name))
        check_count("layers", self.layers, most=MAX_LAYERS)
        check_weights(vocabulary=self.vocabulary, width=self.width)
        check_count("pad_id", self.pad_id, least=0, most=self.vocabulary - 1)
        for name in ("dropout", "attention_dropout"):
            check_dropout(getattr(self, name))
        check_number("epsilon", self.epsilon, least=0.0)
        check_number("deviation", self.deviation, least=0.0)
        for name in ("pooler", "head", "tied"):
            check_flag(name, getattr(self, name))
        check_choice("activation of a BERT", self.activation, set(ACTIVATIONS.values()))
        if self.width % self.heads:
            raise OptionError(
                "width is not divisible by heads",
                expected="a multiple of heads",
                got=f"width={self.width}, heads={self.heads}",
                do="BERT's heads are of equal size; choose another number of heads",
            )

    @classmethod
    def from_hugging_face(cls, config: ConfigFile) -> BertConfig:
        """Read the config from a Hugging Face config.json. Raises CheckpointError for missing or unusable fields."""
        config.require("position_embedding_type", "absolute", default="absolute")
        config.require("is_decoder", False, default=False)
        return config.build(
            cls,
            vocabulary=config.size("vocab_size"),
            width=config.size("hidden_size"),
            layers=config.size("num_hidden_layers"),
            heads=config.size("num_attention_heads", divides="hidden_size"),
            inner=config.size("intermediate_size"),
            max_length=config.size("max_position_embeddings"),
            segments=config.size("type_vocab_size", default=2),
            activation=ACTIVATIONS[config.choice("hidden_act", ACTIVATIONS, default="gelu")],
            epsilon=config.number("layer_norm_eps", default=1e-12),
            dropout=config.number("hidden_dropout_prob", default=0.1, below=1.0),
            attention_dropout=config.number("attention_probs_dropout_prob", default=0.1, below=1.0),
            deviation=config.number("initializer_range", default=0.02),
            pad_id=config.index("pad_token_id", default=0, below="vocab_size"),
            tied=config.flag("tie_word_embeddings", default=True),
        )

    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``."""
        return {
            "architectures": ["BertForMaskedLM" if self.head else "BertModel"],
            "model_type": "bert",
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.inner,
            "max_position_embeddings": self.max_length,
            "type_vocab_size": self.segments,
            "hidden_act": activation_to_hugging_face(self.activation),
            "layer_norm_eps": self.epsilon,
            "hidden_dropout_prob": self.dropout,
            "attention_probs_dropout_prob": self.attention_dropout,
            "initializer_range": self.deviation,
            "pad_token_id": self.pad_id,
            "position_embedding_type": "absolute",
            "tie_word_embeddings": self.tied,
        }


@final
@dataclass(frozen=True, eq=False)
class BertOutput:
    """The output of a BERT.

    hidden  (batch, length, width)           hidden states after the last layer
    layers  layers + 1 of the same shape     the embedding, then each layer's output; None without ``keep_layers``
    pooled  (batch, width)                   the pooler's output for the first token; None if there is no pooler
    logits  (batch, length, vocabulary)      of the token at each position, or (positions, vocabulary) with
                                             ``logits_at``; None if there is no masked-language head
    """

    hidden: Float[Tensor, "batch length width"]
    layers: tuple[Float[Tensor, "batch length width"], ...] | None = None
    pooled: Float[Tensor, "batch width"] | None = None
    logits: Float[Tensor, "*rows vocabulary"] | None = None

    def __repr__(self) -> str:
        layers = "None" if self.layers is None else f"{len(self.layers)} like it"
        pooled, logits = (None if one is None else tuple(one.shape) for one in (self.pooled, self.logits))
        return f"BertOutput(hidden {tuple(self.hidden.shape)}, layers {layers}, pooled {pooled}, logits {logits})"


@final
@explain_arguments
class Bert(MaskedLanguageModel):
    """A BERT with random initial weights; ``regard.load`` loads a trained one.

    ``tokenizer`` and ``pooling`` are those of a loaded model, else None. ``notes`` lists weights that loading skipped.
    """

    config: BertConfig
    config_class = BertConfig
    has_absolute_positions = True
    optional_parts = MappingProxyType({"pooler": "pooler.weight", "head": "head.transform.weight"})

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.token_embedding = nn.Embedding(config.vocabulary, config.width)
        self.positions = Learned(config.max_length, config.width)
        self.segments = nn.Embedding(config.segments, config.width)
        self.norm = nn.LayerNorm(config.width, eps=config.epsilon)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(_make_layer(config) for _ in range(config.layers))
        self.pooler = nn.Linear(config.width, config.width) if config.pooler else None
        self.head = _make_head(config) if config.head else None
        self._init_weights()
        self.tie()

    def forward(
        self,
        ids: Tensor,
        *,
        mask: Mask | None = None,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
        logits_at: Tensor | None = None,
        keep_layers: bool = False,
    ) -> BertOutput:
        """Compute the hidden states of token ids.

        Args:
            ids: token ids (batch, length), 0 to vocabulary - 1.
            mask: which tokens may attend to which, from ``regard.masks``; for padded ids ``masks.padding(lengths)``.
            segments: token types (batch, length): 0 for the first sentence, 1 for the second; None is all 0.
            positions: those of the tokens in their texts, (batch, length), for texts that are packed behind one
                another; None counts from the first column.
            logits_at: the positions whose logits are computed, bool (batch, length): ``logits`` is then (number of
                positions, vocabulary); None is all.
            keep_layers: return the embedding and the output of each layer too, in ``.layers``.

        Raises ShapeError for more tokens than positions, OptionError for ids outside the vocabulary.
        """
        check_flag("keep_layers", keep_layers)
        tokens = self._embed(ids, segments, positions)
        kept = [tokens]
        for layer in self.layers:
            tokens = layer(tokens, mask=mask)
            if keep_layers:
                kept.append(tokens)
        pooled = None if self.pooler is None else torch.tanh(self.pooler(tokens[:, 0]))
        logits = self.select_logits(tokens, logits_at)
        return BertOutput(tokens, tuple(kept) if keep_layers else None, pooled, logits)

    @classmethod
    def read_config(cls, config: ConfigFile) -> BertConfig:
        """Read the hyperparameters from config.json. Raises CheckpointError for missing or unusable fields."""
        return BertConfig.from_hugging_face(config)

    @classmethod
    def make_weight_names(cls, config: BertConfig) -> WeightNames:
        """Make the table of the names of weights in a file, for a model with these hyperparameters.

        Files hold the head's bias twice, and old ones the tied matrix too.
        """
        head_rows = (*_HEAD_ROWS, _TIED_ROW if config.tied else _UNTIED_ROW) if config.head else ()
        copies = r"cls\.predictions\.decoder\.(weight|bias)" if config.tied else r"cls\.predictions\.bias"
        return WeightNames(
            ROWS + head_rows,
            prefix="bert.",
            outer=tuple(str(row.stored) for row in head_rows),
            ignored_patterns=(r"embeddings\.(position|token_type)_ids", *([copies] if config.head else [])),
            heads=("cls.", "classifier.", "qa_outputs."),
            tied_weights=tied_head_weights(config),
        )

    def config_fields(self) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``."""
        return self.config.to_hugging_face()

    def _embed(self, ids: Tensor, segments: Tensor | None, positions: Tensor | None) -> Tensor:
        self.check_ids(ids)
        if positions is None:
            words = self.token_embedding(ids) + self.positions(ids.shape[1])
        else:
            check_token_positions(positions, ids, self.config.max_length)
            words = self.token_embedding(ids) + functional.embedding(positions, self.positions.weight)
        if segments is None:
            segment = self.segments.weight[0]
        else:
            check_token_ids("segments", segments, self.config.segments)
            _check_same_shape(ids, segments)
            segment = self.segments(segments)
        embedded: Tensor = self.dropout(self.norm(words + segment))
        return embedded

    def _init_weights(self) -> None:
        """Initialise weights from a normal distribution and biases with 0, as in the published code."""
        init_from_normal(self, float(self.config.deviation))
        nn.init.normal_(self.positions.weight, std=float(self.config.deviation))


def _make_layer(config: BertConfig) -> EncoderBlock:
    """Build one layer. As in the published code, dropout is on attention weights, not inside the feed-forward."""
    return EncoderBlock(
        attention=MultiHeadAttention(config.width, config.heads, dropout=config.attention_dropout),
        feed_forward=FeedForward(config.width, config.inner, activation=config.activation),
        attention_residual=PostNorm(nn.LayerNorm(config.width, eps=config.epsilon), dropout=config.dropout),
        feed_forward_residual=PostNorm(nn.LayerNorm(config.width, eps=config.epsilon), dropout=config.dropout),
    )


def _make_head(config: BertConfig) -> MaskedLanguageHead:
    norm = nn.LayerNorm(config.width, eps=config.epsilon)
    return MaskedLanguageHead(config.width, config.vocabulary, activation=config.activation, norm=norm)


def _check_same_shape(ids: Tensor, segments: Tensor) -> None:
    if ids.shape != segments.shape:
        raise ShapeError(
            "ids and segments have different shapes",
            expected=f"segments {tuple(ids.shape)}, like the ids",
            got=str(tuple(segments.shape)),
            do="pass a segment for each token, padding included",
        )


def bert_tiny() -> Bert:
    """BERT tiny, untrained: 2 layers of width 128. Turc et al. 2019, "Well-read students learn better", table 1."""
    return Bert(BertConfig(width=128, layers=2, heads=2, inner=512))


def bert_mini() -> Bert:
    """BERT mini, untrained: 4 layers of width 256. Turc et al. 2019, table 1."""
    return Bert(BertConfig(width=256, layers=4, heads=4, inner=1024))


def bert_small() -> Bert:
    """BERT small, untrained: 4 layers of width 512. Turc et al. 2019, table 1."""
    return Bert(BertConfig(width=512, layers=4, heads=8, inner=2048))


def bert_base() -> Bert:
    """BERT base, uncased, untrained: 12 layers of width 768. Devlin et al. 2019, section 3."""
    return Bert(BertConfig())


def bert_large() -> Bert:
    """BERT large, uncased, untrained: 24 layers of width 1,024. Devlin et al. 2019, section 3."""
    return Bert(BertConfig(width=1024, layers=24, heads=16, inner=4096))


def minilm() -> Bert:
    """MiniLM, untrained: 6 layers of width 384, as in ``regard.load("minilm")``. Wang et al. 2020, "MiniLM"."""
    return Bert(BertConfig(width=384, layers=6, heads=12, inner=1536))
