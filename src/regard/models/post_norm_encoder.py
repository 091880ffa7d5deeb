"""The form that BERT and RoBERTa have in common; they differ in positions, segments, numbers and names of weights.

    h_0 = norm(embedding)
    a   = norm(h + MultiHead(h, h)),   h' = norm(a + FFN(a))         for each layer
    pooled = tanh(W h_L[first token] + b)
    logits = head(h_L)                                               ``masked_language_head``

Devlin et al. 2019, "BERT: pre-training of deep bidirectional transformers", section 3 and figure 2. ids (batch, length)
-> hidden (batch, length, width), logits (batch, length, vocabulary).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import (
    OptionError,
    check_choice,
    check_count,
    check_dropout,
    check_flag,
    check_number,
    check_size,
    check_weights,
)
from regard.layers import Dropout, encoder_block
from regard.masks import Mask
from regard.models.activation_names import ACTIVATIONS, activation_to_hugging_face
from regard.models.config_file import MAX_LAYERS, ConfigFile
from regard.models.initial_weights import init_from_normal
from regard.models.masked_language_head import MaskedLanguageHead
from regard.models.masked_language_model import MaskedLanguageModel, tied_head_weights
from regard.models.weight_names import Row, WeightNames

_ROWS = (
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
"""Weight names in Hugging Face files, and in this model."""


@dataclass(frozen=True)
class PostNormEncoderConfig(ABC):
    """The hyperparameters of a BERT or a RoBERTa; each has its own defaults.

    Args:
        vocabulary: number of tokens.
        width: size of hidden states.
        layers: number of layers.
        heads: number of heads.
        inner: hidden size of the feed-forward layers.
        max_length: number of positions of tokens.
        segments: number of token types.
        activation: that of the feed-forward layers.
        epsilon: that of the layer norms.
        dropout: dropout of embeddings and sublayers.
        attention_dropout: dropout of attention weights.
        deviation: standard deviation of the initial weights.
        pad_id: the padding token.
        pooler: whether there is a pooler.
        head: whether there is a masked-language head.
        tied: whether the output layer of the head shares the matrix of the embedding.

    Raises OptionError for values out of range.
    """

    vocabulary: int
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

    kind: ClassVar[str]
    """The name of the model in messages."""

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
        check_choice(f"activation of a {self.kind}", self.activation, set(ACTIVATIONS.values()))
        if self.width % self.heads:
            raise OptionError(
                "width is not divisible by heads",
                expected="a multiple of heads",
                got=f"width={self.width}, heads={self.heads}",
                do=f"{self.kind}'s heads are of equal size; choose another number of heads",
            )

    @property
    @abstractmethod
    def head_activation(self) -> str:
        """The activation of the masked-language head."""

    @classmethod
    def read_fields(cls, config: ConfigFile) -> dict[str, Any]:
        """Read the hyperparameters of a Hugging Face config.json, whose positions are those of all rows."""
        config.require("position_embedding_type", "absolute", default="absolute")
        config.require("is_decoder", False, default=False)
        return {
            "vocabulary": config.size("vocab_size"),
            "width": config.size("hidden_size"),
            "layers": config.size("num_hidden_layers"),
            "heads": config.size("num_attention_heads", divides="hidden_size"),
            "inner": config.size("intermediate_size"),
            "max_length": config.size("max_position_embeddings"),
            "segments": config.size("type_vocab_size", default=2),
            "activation": ACTIVATIONS[config.choice("hidden_act", ACTIVATIONS, default="gelu")],
            "epsilon": config.number("layer_norm_eps", default=1e-12),
            "dropout": config.number("hidden_dropout_prob", default=0.1, below=1.0),
            "attention_dropout": config.number("attention_probs_dropout_prob", default=0.1, below=1.0),
            "deviation": config.number("initializer_range", default=0.02),
            "pad_id": config.index("pad_token_id", default=cls.pad_id, below="vocab_size"),
            "tied": config.flag("tie_word_embeddings", default=True),
        }

    def write_fields(self, *, model_type: str, name: str, position_rows: int) -> dict[str, Any]:
        """The fields of a config.json for the classes of ``transformers`` whose names begin with ``name``."""
        return {
            "architectures": [name + ("ForMaskedLM" if self.head else "Model")],
            "model_type": model_type,
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.inner,
            "max_position_embeddings": position_rows,
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
@dataclass(frozen=True, eq=False)
class BertOutput:
    """The output of a BERT or a RoBERTa.

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


class PostNormEncoder(MaskedLanguageModel, ABC):
    """An encoder with random initial weights, whose embedding a subclass computes."""

    config: PostNormEncoderConfig
    has_absolute_positions = True
    optional_parts = MappingProxyType({"pooler": "pooler.weight", "head": "head.transform.weight"})

    file_prefix: ClassVar[str]
    """The beginning of the encoder's weight names in files that hold a head too."""
    head_rows: ClassVar[tuple[Row, ...]]
    """The weight names of the head's layers but the output."""
    head_name: ClassVar[str]
    """The weight name of the head's output layer."""

    def __init__(self, config: PostNormEncoderConfig) -> None:
        super().__init__(config)
        self.token_embedding = nn.Embedding(config.vocabulary, config.width)
        self.positions = self.make_positions()
        self.segments = nn.Embedding(config.segments, config.width)
        self.norm = nn.LayerNorm(config.width, eps=config.epsilon)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(
            encoder_block(  # as in the published code, dropout is on attention weights, not inside the feed-forward
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
        init_from_normal(self, float(config.deviation))
        self.tie()

    @abstractmethod
    def make_positions(self) -> nn.Module:
        """Make the table of positions."""

    @final
    def encode_tokens(
        self,
        tokens: Float[Tensor, "batch length width"],
        *,
        mask: Mask | None,
        logits_at: Tensor | None,
        keep_layers: bool,
    ) -> BertOutput:
        """Compute the output from the embedding of tokens. See ``forward``."""
        kept = [tokens]
        for layer in self.layers:
            tokens = layer(tokens, mask=mask)
            if keep_layers:
                kept.append(tokens)
        pooled = None if self.pooler is None else torch.tanh(self.pooler(tokens[:, 0]))
        logits = self.select_logits(tokens, logits_at)
        return BertOutput(tokens, tuple(kept) if keep_layers else None, pooled, logits)

    @classmethod
    def make_weight_names(cls, config: PostNormEncoderConfig) -> WeightNames:
        """Make the table of the names of weights in a file, for a model with these hyperparameters.

        Files hold the head's bias under two names, or under one of them; and so the matrix, if it is tied.
        """
        decoder = f"{cls.head_name}.decoder"
        output = cls.head_name if config.tied else decoder
        head_rows = (*cls.head_rows, Row(output, "head.output")) if config.head else ()
        copies = {f"{decoder}.bias": f"{cls.head_name}.bias", f"{decoder}.weight": "embeddings.word_embeddings.weight"}
        if not config.tied:
            copies = {f"{cls.head_name}.bias": f"{decoder}.bias"}
        return WeightNames(
            _ROWS + head_rows,
            prefix=cls.file_prefix,
            outer=tuple(str(row.stored) for row in head_rows),
            ignored_patterns=(r"embeddings\.(position|token_type)_ids",),
            heads=(cls.head_name.partition(".")[0] + ".", "classifier.", "qa_outputs."),
            copies=copies if config.head else {},
            tied_weights=tied_head_weights(config),
        )


def _make_head(config: PostNormEncoderConfig) -> MaskedLanguageHead:
    norm = nn.LayerNorm(config.width, eps=config.epsilon)
    return MaskedLanguageHead(config.width, config.vocabulary, activation=config.head_activation, norm=norm)
