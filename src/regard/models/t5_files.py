"""The names of the weights of a T5 in a file."""

from __future__ import annotations

from collections.abc import Collection

from regard.models.config_file import ConfigFile
from regard.models.t5_config import T5Config
from regard.models.weight_names import Row

EMBEDDING, EMBEDDING_COPIES = "shared.weight", ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
"""The name of the embedding in a file, and those of the same matrix as part of each stack."""
OUTPUT = "lm_head.weight"
"""The name of the output layer in a file."""


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
        *_attention_rows(file + "0.SelfAttention.", model + "attention."),
        Row(file + "0.layer_norm", model + "attention_residual.norm"),
        *_feed_forward_rows(config, file + "1.DenseReluDense.", model + "feed_forward."),
        Row(file + "1.layer_norm", model + "feed_forward_residual.norm"),
        Row("encoder.final_layer_norm", prefix + "norm"),
    )


def decoder_rows(config: T5Config) -> tuple[Row, ...]:
    """Rows of the weight names of the decoder."""
    file, model = "decoder.block.{n}.layer.", "decoder.{n}."
    return (
        Row(file + "0.SelfAttention.relative_attention_bias", "decoder_biases.{n}"),
        *_attention_rows(file + "0.SelfAttention.", model + "attention."),
        Row(file + "0.layer_norm", model + "attention_residual.norm"),
        *_attention_rows(file + "1.EncDecAttention.", model + "cross_attention."),
        Row(file + "1.layer_norm", model + "cross_attention_residual.norm"),
        *_feed_forward_rows(config, file + "2.DenseReluDense.", model + "feed_forward."),
        Row(file + "2.layer_norm", model + "feed_forward_residual.norm"),
        Row("decoder.final_layer_norm", "decoder_norm"),
    )


def _attention_rows(file: str, model: str) -> tuple[Row, ...]:
    sides = {"q": "query", "k": "key", "v": "value", "o": "output"}
    return tuple(Row(file + short, f"{model}{side}_projection") for short, side in sides.items())


def _feed_forward_rows(config: T5Config, file: str, model: str) -> tuple[Row, ...]:
    first = {"wi_0": "gate", "wi_1": "up"} if config.is_gated else {"wi": "up"}
    return tuple(Row(file + stored, model + name) for stored, name in (first | {"wo": "down"}).items())
