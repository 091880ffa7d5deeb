"""The hyperparameters of a T5, and the config.json of the model types that it covers.

    t5     T5 1.0: ReLU, one matrix for embedding and output; T5 1.1 and Flan-T5: gated GELU, an output layer of its own
    mt5    as T5 1.1, many languages
    umt5   and a position bias for each layer

Raffel et al. 2020 (T5), sections 2.1 and 3.1; Shazeer 2020 (gated GELU), section 3; Xue et al. 2021 (mT5), section 3;
Chung et al. 2023 (UniMax), section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from regard.arguments import explain_arguments
from regard.errors import CheckpointError, OptionError, check_weights
from regard.fields import check_fields
from regard.models.config_file import ConfigFile
from regard.models.hyperparameters import (
    ACTIVATIONS,
    depth_field,
    model_field,
    model_type_field,
    name_in_file,
    probability_field,
    read_published,
    size_field,
    write_published,
)
from regard.models.special_ids import end_ids_field, pad_id_field, special_id_field
from regard.positions import T5Buckets

_GATED = {"gated-gelu": "geglu_tanh", "gated-silu": "swiglu", "gated-relu": "reglu"}
_ACTIVATIONS = _GATED | {"gated-gelu_new": "geglu_tanh", "gated-gelu_pytorch_tanh": "geglu_tanh"} | ACTIVATIONS
"""Activations by the field "feed_forward_proj"; its "gated-gelu" is the tanh form."""
_FUNCTIONS = tuple(dict.fromkeys(name.removeprefix("gated-") for name in _ACTIVATIONS))
WRITABLE_ACTIVATIONS = (*_GATED.values(), *dict.fromkeys(ACTIVATIONS.values()))
"""The activations that a config.json can say."""

MODEL_TYPES: Mapping[str, str] = {"t5": "T5", "mt5": "MT5", "umt5": "UMT5"}
"""The model types that ``T5`` reads and writes, by the field "model_type", and how their classes' names begin."""


@final
@explain_arguments
@dataclass(frozen=True)
class T5Config:
    """The hyperparameters of a T5. Defaults are T5 small of 2020.

    Raises OptionError for values out of range, and for those that the model type does not have.
    """

    vocabulary: int = size_field(32128, "number of tokens, the same for source and target", "vocab_size", required=True)
    width: int = size_field(512, "size of hidden states", "d_model", required=True)
    layers: int = depth_field(6, "number of encoder layers", "num_layers", required=True)
    decoder_layers: int | None = depth_field(None, "number of decoder layers; None is ``layers``", "num_decoder_layers")
    heads: int = size_field(8, "number of heads", "num_heads", required=True)
    head_dim: int = size_field(64, "size of a head", "d_kv", required=True)
    inner: int = size_field(2048, "hidden size of the feed-forward layers", "d_ff", required=True)
    buckets: int = size_field(32, "number of buckets of distances, 4 or more", "relative_attention_num_buckets")
    max_distance: int = size_field(
        128,
        "distance from which on all are in the last bucket, more than buckets / 2",
        "relative_attention_max_distance",
    )
    layer_biases: bool = model_field(
        False, "whether each layer has a position bias of its own, as in umT5; else a stack has one"
    )
    activation: str = model_field(
        "relu",
        '"relu", "geglu_tanh", or another one of ``WRITABLE_ACTIVATIONS``',
        "feed_forward_proj",
        choices=WRITABLE_ACTIVATIONS,
        read=lambda config, name: _read_activation(config),
        write=lambda activation: name_in_file(_ACTIVATIONS, activation),
    )
    epsilon: float = model_field(1e-6, "epsilon of the norms", "layer_norm_epsilon", minimum=0.0)
    dropout: float = probability_field(
        0.1,
        "probability of dropping a component of embeddings, of the output and the inner layer of sublayers, and an "
        "attention weight, in training",
        "dropout_rate",
    )
    tied: bool = model_field(True, "whether the output layer shares the matrix of the embedding")
    scale_output: bool = model_field(
        True,
        "whether the decoder's hidden states are divided by sqrt(width) before the output layer",
        "tie_word_embeddings",
    )
    deviation: float = model_field(
        1.0, "factor of the standard deviations of the initial weights", "initializer_factor", minimum=0.0
    )
    pad_id: int = pad_id_field()
    start_id: int | None = special_id_field(
        "the token that begins a target", "decoder_start_token_id", absent=0, default=0
    )
    end_ids: tuple[int, ...] = end_ids_field((1,), absent=(1,))
    model_type: str = model_type_field("t5", MODEL_TYPES)

    model_name = "T5"

    def __post_init__(self) -> None:
        check_fields(self)
        check_weights(vocabulary=self.vocabulary, width=self.width)
        check_weights(width=self.width, heads=self.heads, head_dim=self.head_dim)
        for bidirectional in (True, False):
            T5Buckets(1, buckets=self.buckets, max_distance=self.max_distance, bidirectional=bidirectional)
        for name, fixed in _fixed_values(self.model_type).items():
            if getattr(self, name) != fixed:
                raise OptionError(
                    f"a model of type {self.model_type!r} has a fixed {name}",
                    expected=f"{name}={fixed}",
                    got=str(getattr(self, name)),
                    do="leave it out, or choose another model_type: umt5 has layer_biases, t5 has scale_output",
                )

    @property
    def decoder_depth(self) -> int:
        """The number of decoder layers."""
        return self.layers if self.decoder_layers is None else self.decoder_layers

    @property
    def is_gated(self) -> bool:
        """Whether the feed-forward layers are gated."""
        return self.activation in _GATED.values()

    @classmethod
    def from_hugging_face(cls, config: ConfigFile, *, tied: bool) -> T5Config:
        """Read the config from a Hugging Face config.json. Raises CheckpointError for missing or unusable fields.

        ``tied`` is known from the weights: files say "tie_word_embeddings" for the scale of the output.
        """
        scaled = config.flag("tie_word_embeddings", default=True)
        scaled = config.flag("scale_decoder_outputs", default=scaled)
        return read_published(cls, config, **{"tied": tied, "scale_output": scaled, **_fixed_values(config.model_type)})

    def to_hugging_face(self, *, decoder: bool = True) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``; without ``decoder``, for the encoder alone."""
        name = MODEL_TYPES[self.model_type] + ("ForConditionalGeneration" if decoder else "EncoderModel")
        written = {"architectures": [name], "is_encoder_decoder": decoder, **write_published(self)}
        return written | {"num_decoder_layers": self.decoder_depth}


def _read_activation(config: ConfigFile) -> str:
    """Read the activation: "dense_act_fn" and "is_gated_act", where a file has them, say more than "feed_forward_proj".

    The latter's "gated-gelu" is the tanh form; gated, the exact one is not supported.
    """
    name = config.choice(
        "feed_forward_proj", _ACTIVATIONS, default="relu" if config.model_type == "t5" else "gated-gelu"
    )
    gated, function = name.startswith("gated-"), name.removeprefix("gated-")
    function = "gelu_new" if name == "gated-gelu" else function
    gated = config.flag("is_gated_act", default=gated)
    if config.fields.get("dense_act_fn") is not None:
        function = config.choice("dense_act_fn", _FUNCTIONS, default=function)
    written = f"gated-{function}" if gated else function
    if written == "gated-gelu" or written not in _ACTIVATIONS:
        raise CheckpointError(
            f"{config.path} names an activation that is not supported: {function}{', gated' if gated else ''}",
            expected="dense_act_fn of a gated layer (is_gated_act, or feed_forward_proj that begins with gated-): "
            "gelu_new, silu or relu",
            got=f"feed_forward_proj {name!r} with dense_act_fn {function!r}",
            do="check that the file belongs to this model",
        )
    return _ACTIVATIONS[written]


def _fixed_values(model_type: str) -> dict[str, bool]:
    """Hyperparameters that all models of a type have."""
    return {"layer_biases": model_type == "umt5"} | ({"scale_output": False} if model_type == "mt5" else {})
