"""The form that BERT and RoBERTa have in common; they differ in positions, segments, numbers and names of weights.

    h_0 = norm(embedding)
    a   = norm(h + MultiHead(h, h)),   h' = norm(a + FFN(a))         for each layer
    pooled = tanh(W h_L[first token] + b)
    logits = head(h_L)                                               ``masked_language_model``

Devlin et al. 2019, "BERT: pre-training of deep bidirectional transformers", section 3 and figure 2. ids (batch, length)
-> hidden (batch, length, width), logits (batch, length, vocabulary).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Self, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import check_weights
from regard.fields import SIZE, Facts, check_fields, declare
from regard.layers import Dropout, encoder_block
from regard.masks import Mask
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
from regard.models.masked_language_model import (
    MaskedLanguageHead,
    MaskedLanguageModel,
    MaskedLanguageOutput,
    tied_head_weights,
)
from regard.models.run_encoder import run_encoder
from regard.models.weight_names import Row, WeightNames, bert_block_rows

_ROWS = (
    Row("embeddings.word_embeddings", "token_embedding"),
    Row("embeddings.position_embeddings", "positions"),
    Row("embeddings.token_type_embeddings", "segments"),
    Row("embeddings.LayerNorm", "norm"),
    *bert_block_rows("encoder.layer.{n}", "layers.{n}", "self."),
    Row("encoder.layer.{n}.attention.output.LayerNorm", "layers.{n}.attention_residual.norm"),
    Row("encoder.layer.{n}.output.LayerNorm", "layers.{n}.feed_forward_residual.norm"),
    Row("pooler.dense", "pooler"),
)
"""Weight names in Hugging Face files, and in this model."""


@dataclass(frozen=True)
class PostNormEncoderConfig(ABC):
    """The hyperparameters of a BERT or a RoBERTa; each has its own defaults.

    Raises OptionError for values out of range.
    """

    vocabulary: int = field(metadata=declare("number of tokens", **SIZE | Facts(stored="vocab_size", required=True)))
    width: int = size_field(768, "size of hidden states", "hidden_size", required=True)
    layers: int = depth_field(12, "number of layers", "num_hidden_layers", required=True)
    heads: int = size_field(12, "number of heads", "num_attention_heads", required=True, divides="width")
    inner: int = size_field(3072, "hidden size of the feed-forward layers", "intermediate_size", required=True)
    max_length: int = size_field(512, "number of positions of tokens", "max_position_embeddings", required=True)
    segments: int = size_field(2, "number of token types", "type_vocab_size", absent=2)
    activation: str = model_field(
        "gelu", "activation of the feed-forward layers", "hidden_act", stored_names=ACTIVATIONS
    )
    epsilon: float = model_field(1e-12, "epsilon of the layer norms", "layer_norm_eps", minimum=0.0, absent=1e-12)
    dropout: float = probability_field(0.1, "dropout of embeddings and sublayers", "hidden_dropout_prob")
    attention_dropout: float = probability_field(0.1, "dropout of attention weights", "attention_probs_dropout_prob")
    deviation: float = model_field(0.02, "standard deviation of initial weights", "initializer_range", minimum=0.0)
    pad_id: int = model_field(0, "the padding token", "pad_token_id", below="vocabulary")
    pooler: bool = model_field(True, "whether there is a pooler")
    head: bool = model_field(False, "whether there is a masked-language head")
    tied: bool = model_field(
        True, "whether the output layer of the head shares the matrix of the embedding", "tie_word_embeddings"
    )

    model_name: ClassVar[str]
    """The name of the model in messages."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_weights(vocabulary=self.vocabulary, width=self.width)

    @property
    @abstractmethod
    def head_activation(self) -> str:
        """The activation of the masked-language head."""

    @classmethod
    def from_hugging_face(cls, config: ConfigFile) -> Self:
        """Read the config from a Hugging Face config.json. Raises CheckpointError for missing or unusable fields."""
        config.require("position_embedding_type", "absolute", default="absolute")
        config.require("is_decoder", False, default=False)
        return read_published(cls, config)

    @final
    def write_fields(self, *, model_type: str, name: str) -> dict[str, Any]:
        """The fields of a config.json for the classes of ``transformers`` whose names begin with ``name``."""
        return {
            "architectures": [name + ("ForMaskedLM" if self.head else "Model")],
            "model_type": model_type,
            **write_published(self),
            "position_embedding_type": "absolute",
        }


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
    ) -> MaskedLanguageOutput:
        """Compute the output from the embedding of tokens. See ``forward``."""
        tokens, layers = run_encoder(tokens, self.layers, mask, keep=keep_layers)
        pooled = None if self.pooler is None else torch.tanh(self.pooler(tokens[:, 0]))
        logits = self.select_logits(tokens, logits_at)
        return MaskedLanguageOutput(tokens, layers, pooled, logits)

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
