"""RoBERTa and XLM-R: text encoders of the form of BERT, with their masked-language head if there is one.

    p_t = pad + (number of tokens up to t that are no padding);  pad for padding
    h_0 = norm(tokens[ids] + positions[p] + segment)
    a   = norm(h + MultiHead(h, h)),   h' = norm(a + FFN(a))         for each layer
    pooled = tanh(W h_L[first token] + b)
    logits = head(h_L)                                               ``masked_language_head``, with GELU

Liu et al. 2019, "RoBERTa: a robustly optimized BERT pretraining approach", section 3; Conneau et al. 2020,
"Unsupervised cross-lingual representation learning at scale" (XLM-R), section 3; Martin et al. 2020, "CamemBERT",
section 3. The count of positions, which begins behind the padding id, and the one segment are from the published code.
ids (batch, length) -> hidden (batch, length, width), logits (batch, length, vocabulary).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, final

import torch
from torch import Tensor, nn

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
from regard.layers import Dropout, encoder_block
from regard.masks import Mask
from regard.models.activation_names import ACTIVATIONS, activation_to_hugging_face
from regard.models.bert import ROWS, BertOutput
from regard.models.check_token_ids import check_token_positions
from regard.models.config_file import MAX_LAYERS, ConfigFile
from regard.models.initial_weights import init_from_normal
from regard.models.masked_language_head import MaskedLanguageHead
from regard.models.masked_language_model import MaskedLanguageModel, tied_head_weights
from regard.models.weight_names import Row, WeightNames
from regard.validation import check_dropout

ROBERTA_TYPES: Mapping[str, str] = {"camembert": "Camembert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta"}
"""The model types that ``Roberta`` reads and writes, and how the names of their classes in ``transformers`` begin."""
_HEAD_ROWS = (Row("lm_head.dense", "head.transform"), Row("lm_head.layer_norm", "head.norm"))
_TIED_ROW, _UNTIED_ROW = Row("lm_head", "head.output"), Row("lm_head.decoder", "head.output")
"""Weight names in Hugging Face files, and in this model; those of the encoder are a BERT's."""


@final
@explain_arguments
@dataclass(frozen=True)
class RobertaConfig:
    """The hyperparameters of a RoBERTa. Defaults are RoBERTa base.

    Args:
        vocabulary: number of tokens.
        width: size of hidden states.
        layers: number of layers.
        heads: number of heads.
        inner: hidden size of the feed-forward layers.
        max_length: number of positions of tokens; the file has ``pad_id`` + 1 more rows.
        segments: number of segments in the file, of which only the first is used.
        activation: that of the feed-forward layers.
        epsilon: that of the layer norms.
        dropout: dropout of embeddings and sublayers.
        attention_dropout: dropout of attention weights.
        deviation: standard deviation of the initial weights.
        pad_id: the padding token.
        pooler: whether there is a pooler.
        head: whether there is a masked-language head.
        tied: whether the output layer of the head shares the matrix of the embedding.
        model_type: the type in config.json, one of ``ROBERTA_TYPES``; the models are the same.

    Raises OptionError for values out of range.
    """

    vocabulary: int = 50265
    width: int = 768
    layers: int = 12
    heads: int = 12
    inner: int = 3072
    max_length: int = 512
    segments: int = 1
    activation: str = "gelu"
    epsilon: float = 1e-5
    dropout: float = 0.1
    attention_dropout: float = 0.1
    deviation: float = 0.02
    pad_id: int = 1
    pooler: bool = True
    head: bool = False
    tied: bool = True
    model_type: str = "roberta"

    def __post_init__(self) -> None:
        for name in ("vocabulary", "width", "heads", "inner", "max_length", "segments"):
            check_size(name, getattr(self, name))
        check_count("layers", self.layers, most=MAX_LAYERS)
        check_weights(vocabulary=self.vocabulary, width=self.width)
        check_count("pad_id", self.pad_id, least=0, most=self.vocabulary - 1)
        for name in ("dropout", "attention_dropout"):
            check_dropout(getattr(self, name))
        for name in ("epsilon", "deviation"):
            check_number(name, getattr(self, name), least=0.0)
        for name in ("pooler", "head", "tied"):
            check_flag(name, getattr(self, name))
        check_choice("activation of a RoBERTa", self.activation, set(ACTIVATIONS.values()))
        check_choice("model_type of a RoBERTa", self.model_type, ROBERTA_TYPES)
        if self.width % self.heads:
            raise OptionError(
                "width is not divisible by heads",
                expected="a multiple of heads",
                got=f"width={self.width}, heads={self.heads}",
                do="RoBERTa's heads are of equal size; choose another number of heads",
            )

    @classmethod
    def from_hugging_face(cls, config: ConfigFile) -> RobertaConfig:
        """Read the config from a Hugging Face config.json. Raises CheckpointError for missing or unusable fields."""
        config.require("position_embedding_type", "absolute", default="absolute")
        config.require("is_decoder", False, default=False)
        pad_id = config.index("pad_token_id", default=1, below="vocab_size")
        return config.build(
            cls,
            vocabulary=config.size("vocab_size"),
            width=config.size("hidden_size"),
            layers=config.size("num_hidden_layers"),
            heads=config.size("num_attention_heads", divides="hidden_size"),
            inner=config.size("intermediate_size"),
            max_length=config.size("max_position_embeddings") - pad_id - 1,
            segments=config.size("type_vocab_size", default=2),
            activation=ACTIVATIONS[config.choice("hidden_act", ACTIVATIONS, default="gelu")],
            epsilon=config.number("layer_norm_eps", default=1e-12),
            dropout=config.number("hidden_dropout_prob", default=0.1, below=1.0),
            attention_dropout=config.number("attention_probs_dropout_prob", default=0.1, below=1.0),
            deviation=config.number("initializer_range", default=0.02),
            pad_id=pad_id,
            tied=config.flag("tie_word_embeddings", default=True),
            model_type=config.model_type,
        )

    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``."""
        return {
            "architectures": [ROBERTA_TYPES[self.model_type] + ("ForMaskedLM" if self.head else "Model")],
            "model_type": self.model_type,
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.inner,
            "max_position_embeddings": self.max_length + self.pad_id + 1,
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
@explain_arguments
class Roberta(MaskedLanguageModel):
    """A RoBERTa with random initial weights; ``regard.load`` loads a trained one."""

    config: RobertaConfig
    config_class = RobertaConfig
    has_absolute_positions = True
    optional_parts = MappingProxyType({"pooler": "pooler.weight", "head": "head.transform.weight"})

    def __init__(self, config: RobertaConfig) -> None:
        super().__init__(config)
        self.token_embedding = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.max_length + config.pad_id + 1, config.width)
        self.segments = nn.Embedding(config.segments, config.width)
        self.norm = nn.LayerNorm(config.width, eps=config.epsilon)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(
            encoder_block(
                config.width,
                config.heads,
                config.inner,
                activation=config.activation,
                dropout=config.dropout,
                attention_dropout=config.attention_dropout,
                epsilon=config.epsilon,
            )
            for _ in range(config.layers)
        )
        self.pooler = nn.Linear(config.width, config.width) if config.pooler else None
        self.head = _make_head(config) if config.head else None
        init_from_normal(self, float(self.config.deviation))
        self.tie()

    def forward(
        self,
        ids: Tensor,
        *,
        mask: Mask | None = None,
        positions: Tensor | None = None,
        logits_at: Tensor | None = None,
        keep_layers: bool = False,
    ) -> BertOutput:
        """Compute the hidden states of token ids.

        Args:
            ids: token ids (batch, length), 0 to vocabulary - 1. Positions are counted over those that are not
                ``pad_id``, so padding, on either side, is filled with it.
            mask: which tokens may attend to which, from ``regard.masks``; for padded ids ``masks.padding(lengths)``.
            positions: those of the tokens in their texts, (batch, length), from 0, for texts that are packed behind one
                another; None counts the tokens of each row that are no padding.
            logits_at: the positions whose logits are computed, bool (batch, length): ``logits`` is then (number of
                positions, vocabulary); None is all.
            keep_layers: return the embedding and the output of each layer too, in ``.layers``.

        Raises ShapeError for more tokens than positions, OptionError for ids outside the vocabulary.
        """
        check_flag("keep_layers", keep_layers)
        tokens = self._embed(ids, positions)
        kept = [tokens]
        for layer in self.layers:
            tokens = layer(tokens, mask=mask)
            if keep_layers:
                kept.append(tokens)
        pooled = None if self.pooler is None else torch.tanh(self.pooler(tokens[:, 0]))
        logits = self.select_logits(tokens, logits_at)
        return BertOutput(tokens, tuple(kept) if keep_layers else None, pooled, logits)

    @classmethod
    def read_config(cls, config: ConfigFile) -> RobertaConfig:
        """Read the hyperparameters from config.json. Raises CheckpointError for missing or unusable fields."""
        return RobertaConfig.from_hugging_face(config)

    @classmethod
    def make_weight_names(cls, config: RobertaConfig) -> WeightNames:
        """Make the table of the names of weights in a file, for a model with these hyperparameters.

        Files hold the head's bias twice, and old ones the tied matrix too.
        """
        head_rows = (*_HEAD_ROWS, _TIED_ROW if config.tied else _UNTIED_ROW) if config.head else ()
        copies = r"lm_head\.decoder\.(weight|bias)" if config.tied else r"lm_head\.bias"
        return WeightNames(
            ROWS + head_rows,
            prefix="roberta.",
            outer=tuple(str(row.stored) for row in head_rows),
            ignored_patterns=(r"embeddings\.(position|token_type)_ids", *([copies] if config.head else [])),
            heads=("lm_head.", "classifier.", "qa_outputs."),
            tied_weights=tied_head_weights(config),
        )

    def config_fields(self) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``."""
        return self.config.to_hugging_face()

    def _embed(self, ids: Tensor, positions: Tensor | None) -> Tensor:
        self.check_ids(ids)
        if positions is None:
            rows = self._count_positions(ids)
        else:
            check_token_positions(positions, ids, self.config.max_length)
            rows = positions + self.config.pad_id + 1
        words = self.token_embedding(ids) + self.segments.weight[0]
        embedded: Tensor = self.dropout(self.norm(words + self.positions(rows)))
        return embedded

    def _count_positions(self, ids: Tensor) -> Tensor:
        """The row of the position embedding of each token. Raises ShapeError for more tokens than positions."""
        is_token = ids != self.config.pad_id
        counts = is_token.cumsum(1) * is_token
        if ids.shape[1] > self.config.max_length and int(counts.max()) > self.config.max_length:
            raise ShapeError(
                "the sequence is longer than the model's positions",
                expected=f"at most {self.config.max_length} tokens",
                got=f"{int(counts.max())} tokens",
                do="split the text, or truncate it: model.tokenizer.encode(texts, truncate=True)",
            )
        return counts + self.config.pad_id


def _make_head(config: RobertaConfig) -> MaskedLanguageHead:
    norm = nn.LayerNorm(config.width, eps=config.epsilon)
    return MaskedLanguageHead(config.width, config.vocabulary, activation="gelu", norm=norm)


def roberta_base() -> Roberta:
    """RoBERTa base, untrained: 12 layers of width 768. Liu et al. 2019, section 3."""
    return Roberta(RobertaConfig())


def roberta_large() -> Roberta:
    """RoBERTa large, untrained: 24 layers of width 1,024. Liu et al. 2019, section 5."""
    return Roberta(RobertaConfig(width=1024, layers=24, heads=16, inner=4096))


def xlm_roberta_base() -> Roberta:
    """XLM-R base, untrained: 12 layers of width 768, for 100 languages. Conneau et al. 2020, section 3."""
    return Roberta(RobertaConfig(vocabulary=250002, model_type="xlm-roberta"))
