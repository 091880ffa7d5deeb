"""The encoder of a T5: see ``t5`` for its equations. ids (batch, length) -> hidden (batch, length, width)."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any, final

from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import check_flag
from regard.layers import Dropout, RMSNorm
from regard.masks import Mask
from regard.models.base import Encoder, HiddenStates
from regard.models.config_file import ConfigFile
from regard.models.model_folder import ModelFolder
from regard.models.run_layers import run_layers
from regard.models.special_ids import find_missing_special_ids
from regard.models.t5_config import T5Config
from regard.models.t5_layers import (
    check_ids,
    compute_tables,
    init_weights,
    make_biases,
    make_encoder_layer,
    tables_of_layers,
)
from regard.models.weight_names import Row, WeightNames, attention_rows
from regard.text.pooling import Pooling

EMBEDDING, EMBEDDING_COPIES = "shared.weight", ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
"""The name of the embedding in a file, and the names of the same matrix as part of each stack."""
SIDES = ("q", "k", "v", "o")
"""The names of the projections of queries, keys, values and the output in a file."""
OUTPUT = "lm_head.weight"
"""The name of the output layer in a file."""


@final
@explain_arguments
class T5Encoder(Encoder):
    """The encoder of a T5 with random initial weights: ``model.encoder`` of a ``T5``, or a model of its own."""

    config: T5Config
    config_class = T5Config

    def __init__(self, config: T5Config) -> None:
        super().__init__(config)
        self.token_embedding = nn.Embedding(config.vocabulary, config.width)
        self.biases = make_biases(config, config.layers, bidirectional=True)
        self.layers = nn.ModuleList(make_encoder_layer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, epsilon=config.epsilon)
        self.dropout = Dropout(config.dropout)
        init_weights(self, config)

    def forward(self, ids: Tensor, *, mask: Mask | None = None, keep_layers: bool = False) -> HiddenStates:
        """Compute the hidden states of token ids.

        Args:
            ids: token ids (batch, length), 0 to vocabulary - 1.
            mask: which tokens may attend to which, from ``regard.masks``; for padded ids ``masks.padding(lengths)``.
            keep_layers: return the embedding and the output of each layer too, in ``.layers``.

        Raises ShapeError, DtypeError or OptionError for ids that do not fit.
        """
        check_flag("keep_layers", keep_layers)
        check_ids("ids", ids, self.config.vocabulary)
        tokens = self.dropout(self.token_embedding(ids))
        tables = compute_tables(self.biases, 1 - ids.shape[1], ids.shape[1] - 1)
        biases = tables_of_layers(tables, len(self.layers))
        layers = [partial(layer, mask=mask, bias=bias) for layer, bias in zip(self.layers, biases, strict=True)]
        hidden, kept = run_layers(tokens, layers, keep=keep_layers, norm=lambda tokens: self.dropout(self.norm(tokens)))
        return HiddenStates(hidden, kept)

    @property
    def max_tokens(self) -> None:
        """The maximum length of a text: none, since all large distances are in one bucket."""
        return None

    @classmethod
    def make_weight_names(cls, config: T5Config) -> WeightNames:
        """Make the table of the names of weights in a file."""
        return WeightNames(
            (Row("shared", "token_embedding"), *encoder_rows(config, "")),
            copies=dict.fromkeys(EMBEDDING_COPIES, EMBEDDING),
        )

    @classmethod
    def read_stored_config(cls, folder: ModelFolder) -> T5Config:
        """Read the hyperparameters from config.json, and from the weights whether the output layer is tied."""
        folder.note(find_missing_special_ids(folder.config))
        return T5Config.from_hugging_face(folder.config, tied=not has_output(folder.config, folder.stored))

    def config_fields(self) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``."""
        return self.config.to_hugging_face(decoder=False)

    def read_files(self, folder: ModelFolder) -> None:
        """Read the tokenizer and the pooling."""
        super().read_files(folder)
        self.pooling = Pooling.read(folder.path)

    def folder_texts(self) -> dict[str, str]:
        """The files of the tokenizer and the pooling, as texts by file name."""
        files = super().folder_texts()
        if self.pooling is not None and not self.pooling.others:
            files |= self.pooling.files(self.config.width, None)
        return files


def has_output(config: ConfigFile, stored: Collection[str]) -> bool:
    """Whether a file holds an output layer apart from the embedding, by the names of its tensors.

    The only matrix of a file may be the embedding under the name of the output layer, if config.json says that they
    share one.
    """
    is_tied = config.flag("tie_word_embeddings", default=True)
    return OUTPUT in stored and not (is_tied and not {EMBEDDING, *EMBEDDING_COPIES} & set(stored))


def encoder_rows(config: T5Config, prefix: str) -> tuple[Row, ...]:
    """Rows of the weight names of the encoder, whose names in the model begin with ``prefix``."""
    file, model = "encoder.block.{n}.layer.", prefix + "layers.{n}."
    return (
        Row(file + "0.SelfAttention.relative_attention_bias", prefix + "biases.{n}"),
        *attention_rows(file + "0.SelfAttention.{side}", model + "attention", SIDES),
        Row(file + "0.layer_norm", model + "attention_residual.norm"),
        *feed_forward_rows(config, file + "1.DenseReluDense.", model + "feed_forward."),
        Row(file + "1.layer_norm", model + "feed_forward_residual.norm"),
        Row("encoder.final_layer_norm", prefix + "norm"),
    )


def feed_forward_rows(config: T5Config, file: str, model: str) -> tuple[Row, ...]:
    """Rows of the weight names of a feed-forward layer."""
    first = {"wi_0": "gate", "wi_1": "up"} if config.is_gated else {"wi": "up"}
    return tuple(Row(file + stored, model + name) for stored, name in (first | {"wo": "down"}).items())
