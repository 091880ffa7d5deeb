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
from regard.errors import (
    CheckpointError,
    OptionError,
    check_choice,
    check_count,
    check_dropout,
    check_flag,
    check_number,
    check_size,
    check_weights,
)
from regard.models.activation_names import ACTIVATIONS, activation_to_hugging_face
from regard.models.config_file import MAX_LAYERS, ConfigFile
from regard.models.special_ids import check_special_ids, join_end_ids, read_end_ids
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

    Args:
        vocabulary: number of tokens, the same for source and target.
        width: size of hidden states.
        layers: number of encoder layers.
        decoder_layers: number of decoder layers; None is ``layers``.
        heads: number of heads.
        head_dim: size of a head.
        inner: hidden size of the feed-forward layers.
        buckets: number of buckets of distances, 4 or more.
        max_distance: distance from which on all are in the last bucket, more than buckets / 2.
        layer_biases: whether each layer has a position bias of its own, as in umT5; else a stack has one.
        activation: "relu", "geglu_tanh", or another one of ``WRITABLE_ACTIVATIONS``.
        epsilon: that of the norms.
        dropout: probability of dropping a component of embeddings, of the output and the inner layer of sublayers, and
            an attention weight, in training.
        tied: whether the output layer shares the matrix of the embedding.
        scale_output: whether the decoder's hidden states are divided by sqrt(width) before the output layer.
        deviation: factor of the standard deviations of the initial weights.
        pad_id: the padding token.
        start_id: the token that begins a target.
        end_ids: the tokens that end a target; the first one ends a source, too.
        model_type: the type in config.json, one of ``MODEL_TYPES``.

    Raises OptionError for values out of range, and for those that the model type does not have.
    """

    vocabulary: int = 32128
    width: int = 512
    layers: int = 6
    decoder_layers: int | None = None
    heads: int = 8
    head_dim: int = 64
    inner: int = 2048
    buckets: int = 32
    max_distance: int = 128
    layer_biases: bool = False
    activation: str = "relu"
    epsilon: float = 1e-6
    dropout: float = 0.1
    tied: bool = True
    scale_output: bool = True
    deviation: float = 1.0
    pad_id: int = 0
    start_id: int = 0
    end_ids: tuple[int, ...] = (1,)
    model_type: str = "t5"

    def __post_init__(self) -> None:
        for name in ("vocabulary", "width", "heads", "head_dim", "inner", "buckets", "max_distance"):
            check_size(name, getattr(self, name))
        for name in ("layers", "decoder_depth"):
            check_count(name.replace("depth", "layers"), getattr(self, name), most=MAX_LAYERS)
        check_weights(vocabulary=self.vocabulary, width=self.width)
        check_weights(width=self.width, heads=self.heads, head_dim=self.head_dim)
        check_special_ids(self.vocabulary, pad_id=self.pad_id, start_id=self.start_id, end_ids=self.end_ids)
        for name in ("pad_id", "start_id"):
            check_count(name, getattr(self, name), least=0)
        for name in ("layer_biases", "tied", "scale_output"):
            check_flag(name, getattr(self, name))
        check_number("epsilon", self.epsilon, least=0.0)
        check_number("deviation", self.deviation, least=0.0)
        check_dropout(self.dropout)
        check_choice("activation of a T5", self.activation, WRITABLE_ACTIVATIONS)
        check_choice("model_type of a T5", self.model_type, MODEL_TYPES)
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
        fixed = _fixed_values(config.model_type)
        return config.build(
            cls,
            vocabulary=config.size("vocab_size"),
            width=config.size("d_model"),
            layers=config.size("num_layers"),
            decoder_layers=config.optional_integer("num_decoder_layers"),
            heads=config.size("num_heads"),
            head_dim=config.size("d_kv"),
            inner=config.size("d_ff"),
            buckets=config.size("relative_attention_num_buckets", default=32),
            max_distance=config.size("relative_attention_max_distance", default=128),
            layer_biases=fixed["layer_biases"],
            activation=_read_activation(config),
            epsilon=config.number("layer_norm_epsilon", default=1e-6),
            dropout=config.number("dropout_rate", default=0.1, below=1.0),
            tied=tied,
            scale_output=fixed.get("scale_output", config.flag("scale_decoder_outputs", default=scaled)),
            deviation=config.number("initializer_factor", default=1.0),
            pad_id=config.index("pad_token_id", default=0, below="vocab_size"),
            start_id=config.index("decoder_start_token_id", default=0, below="vocab_size"),
            end_ids=read_end_ids(config, default=(1,)),
            model_type=config.model_type,
        )

    def to_hugging_face(self, *, decoder: bool = True) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``; without ``decoder``, for the encoder alone."""
        named = {ours: name for name, ours in _GATED.items()}
        return {
            "architectures": [
                MODEL_TYPES[self.model_type] + ("ForConditionalGeneration" if decoder else "EncoderModel")
            ],
            "model_type": self.model_type,
            "is_encoder_decoder": decoder,
            "vocab_size": self.vocabulary,
            "d_model": self.width,
            "d_kv": self.head_dim,
            "d_ff": self.inner,
            "num_layers": self.layers,
            "num_decoder_layers": self.decoder_depth,
            "num_heads": self.heads,
            "relative_attention_num_buckets": self.buckets,
            "relative_attention_max_distance": self.max_distance,
            "feed_forward_proj": named.get(self.activation) or activation_to_hugging_face(self.activation),
            "layer_norm_epsilon": self.epsilon,
            "dropout_rate": self.dropout,
            "tie_word_embeddings": self.scale_output,
            "initializer_factor": self.deviation,
            "pad_token_id": self.pad_id,
            "decoder_start_token_id": self.start_id,
            "eos_token_id": join_end_ids(self.end_ids),
        }


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
