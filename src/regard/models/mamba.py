"""Mamba-2: a language model of selective state spaces, without attention and feed-forward layers.

    h_0 = tokens[ids],    h' = h + mixer(norm(h)) for each layer,    logits = norm(h_L) W^T

Dao and Gu 2024, "Transformers are SSMs", section 7.1; ``layers.Mamba2Mixer`` has the equation of the mixer. There is no
position: the state of a layer knows the order of the tokens. It has a constant size, so no text is too long.
ids (batch, length) -> hidden (batch, length, width), logits (batch, length, vocabulary).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import torch

from regard.arguments import explain_arguments
from regard.errors import OptionError, check_weights
from regard.fields import check_fields
from regard.layers import DecoderBlock, Mamba2Mixer, PreNorm, RMSNorm
from regard.models.causal_language_model import CausalLanguageModel, tied_output_weights
from regard.models.config_file import ConfigFile
from regard.models.hyperparameters import depth_field, model_field, read_published, size_field, write_published
from regard.models.special_ids import end_ids_field, special_id_field
from regard.models.weight_names import Row, WeightNames, mixer_rows

_INFINITY = {"__float__": "Infinity"}
"""Infinity in the files of ``transformers``, which JSON lacks."""
_LARGEST = torch.finfo(torch.float32).max


@final
@explain_arguments
@dataclass(frozen=True)
class MambaConfig:
    """The hyperparameters of a Mamba-2. Defaults follow the published model of 2.7 billion weights.

    Raises OptionError for values out of range.
    """

    vocabulary: int = size_field(50288, "number of tokens", "vocab_size", required=True)
    width: int = size_field(2560, "size of hidden states", "hidden_size", required=True)
    layers: int = depth_field(64, "number of layers", "num_hidden_layers", required=True)
    heads: int = size_field(80, "number of heads of a mixer", "num_heads", required=True)
    head_dim: int = size_field(
        64, "size of a head; heads * head_dim is a multiple of ``width``, twice in the paper", "head_dim", required=True
    )
    state_size: int = size_field(128, "size of a head of queries and keys", "state_size")
    groups: int = size_field(1, "number of heads of queries and keys", "n_groups", divides="heads", absent=8)
    kernel: int = size_field(4, "tokens that the convolution spans", "conv_kernel")
    bias: bool = model_field(False, "whether the projections have biases", "use_bias")
    convolution_bias: bool = model_field(True, "whether the convolution has a bias", "use_conv_bias")
    time_step_limit: tuple[float, float] | None = model_field(
        None,
        "the least and the largest step; None is no limit",
        "time_step_limit",
        example="for example time_step_limit=(0.001, 0.1)",
        read=lambda config, name: _read_limit(config, name),
        write=lambda limit: [0.0, _INFINITY] if limit is None else list(limit),
    )
    epsilon: float = model_field(1e-5, "epsilon of the norms", "layer_norm_epsilon", minimum=0.0)
    tied: bool = model_field(True, "whether the output layer shares the embedding", "tie_word_embeddings", absent=False)
    deviation: float = model_field(
        0.1, "standard deviation of initial weights of embedding and projections", "initializer_range", minimum=0.0
    )
    pad_id: int | None = special_id_field("the padding token", "pad_token_id", absent=1)
    start_id: int | None = special_id_field("the start token", "bos_token_id", absent=0)
    end_ids: tuple[int, ...] = end_ids_field((), absent=(2,))

    model_name = "Mamba-2"

    def __post_init__(self) -> None:
        check_fields(self)
        check_weights(vocabulary=self.vocabulary, width=self.width)
        if self.heads * self.head_dim % self.width:
            raise OptionError(
                "the heads of a Mamba-2 do not fit its width",
                expected=f"heads * head_dim: a multiple of width={self.width}",
                got=f"{self.heads} * {self.head_dim}",
                do=f"for example head_dim={self.width} and heads=2",
            )

    @classmethod
    def from_hugging_face(cls, config: ConfigFile) -> MambaConfig:
        """Read the config from a Hugging Face config.json. Raises CheckpointError for missing or unusable fields."""
        config.require("hidden_act", "silu", default="silu")
        return read_published(cls, config)

    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``."""
        expand = {"expand": self.heads * self.head_dim // self.width}
        return {"architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", **write_published(self), **expand}


def _read_limit(config: ConfigFile, name: str) -> tuple[float, ...] | None:
    """Read the limits of a step, the second of which is infinity in most files."""
    listed = config.listed(name, default=(0.0, math.inf))
    finite = [_LARGEST if limit in (_INFINITY, math.inf) else limit for limit in listed]
    limits = ConfigFile({**config.fields, name: finite}, config.path).numbers(name)
    return None if limits == (0.0, _LARGEST) else limits


@final
@explain_arguments
class Mamba(CausalLanguageModel):
    """A Mamba-2 with random initial weights; ``regard.load`` loads a trained one."""

    config: MambaConfig
    config_class = MambaConfig
    model_types = ("mamba2",)

    def __init__(self, config: MambaConfig) -> None:
        super().__init__(config)
        layers = (_make_layer(config) for _ in range(config.layers))
        self._add_layers(layers, RMSNorm(config.width, epsilon=config.epsilon))

    @property
    def max_tokens(self) -> None:
        """None: there is no limit."""
        return None

    @classmethod
    def make_weight_names(cls, config: MambaConfig) -> WeightNames:
        """Make the table of the names of weights in a file; ``embedding`` is the name in older files."""
        return WeightNames(
            _ROWS,
            prefix="backbone.",
            outer=("lm_head",),
            copies={"embedding.weight": "embeddings.weight"},
            tied_weights=tied_output_weights(config),
        )


def _make_layer(config: MambaConfig) -> DecoderBlock:
    return DecoderBlock(
        attention=Mamba2Mixer(
            config.width,
            config.heads,
            value_dim=config.head_dim,
            state_size=config.state_size,
            groups=config.groups,
            kernel=config.kernel,
            bias=config.bias,
            convolution_bias=config.convolution_bias,
            epsilon=config.epsilon,
            time_step_limit=(0.0, math.inf) if config.time_step_limit is None else config.time_step_limit,
        ),
        attention_residual=PreNorm(RMSNorm(config.width, epsilon=config.epsilon)),
    )


_ROWS = (
    Row("embeddings", "token_embedding"),
    Row("layers.{n}.norm", "layers.{n}.attention_residual.norm"),
    *mixer_rows(Mamba2Mixer, "layers.{n}.mixer", "layers.{n}.attention"),
    Row("norm_f", "norm"),
    Row("lm_head", "output"),
)
"""Weight names in Hugging Face files, and in this model."""


@explain_arguments
def mamba2_130m() -> Mamba:
    """The smallest published Mamba-2, untrained: 24 layers of width 768, as state-spaces/mamba2-130m."""
    return Mamba(MambaConfig(width=768, layers=24, heads=24))


@explain_arguments
def mamba2_2_7b() -> Mamba:
    """The largest published Mamba-2, untrained: 64 layers of width 2,560, as state-spaces/mamba2-2.7b."""
    return Mamba(MambaConfig())
