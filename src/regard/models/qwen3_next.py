"""Qwen3-Next: a hybrid of gated delta nets and gated attention, with a mixture of experts in each layer.

    a  = h + mixer(norm(h)),   h' = a + FFN(norm(a))        for each layer; the mixer of every fourth is attention
    attention(x) = W_o (sigmoid(x W_g) MultiHead(x))        grouped queries, norms of queries and keys, partial rotation
    logits = norm(h_L) W^T

Qwen team 2025, "Qwen3-Next", and the code in ``transformers``. ``layers.GatedDeltaNet`` and
``layers.SharedExpertMixture`` have the equations of the other parts. The state of a gated delta net has a constant
size; only attention keeps keys.
ids (batch, length) -> hidden (batch, length, width), logits (batch, length, vocabulary).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

from regard.arguments import explain_arguments
from regard.errors import OptionError, check_weights
from regard.fields import check_fields
from regard.layers import (
    DecoderBlock,
    FeedForward,
    GatedDeltaNet,
    MultiHeadAttention,
    PreNorm,
    RMSNorm,
    SharedExpertMixture,
)
from regard.mechanisms import DotProduct
from regard.models.causal_language_model import CausalLanguageModel, tied_output_weights
from regard.models.config_file import ConfigFile
from regard.models.hyperparameters import (
    depth_field,
    model_field,
    probability_field,
    read_published,
    size_field,
    write_published,
)
from regard.models.rotary_config import RotaryConfig
from regard.models.special_ids import end_ids_field, special_id_field
from regard.models.weight_names import Row, WeightNames, mixer_rows
from regard.positions import Rotary

_DELTA, _FULL = "linear_attention", "full_attention"
"""Hugging Face's names of the types of layers."""
_ROTATED_SHARE = 0.25
"""The share of a head that is rotated in files that do not say it."""


@final
@explain_arguments
@dataclass(frozen=True)
class Qwen3NextConfig:
    """The hyperparameters of a Qwen3-Next. Defaults follow the published model of 80 billion weights.

    Raises OptionError for values out of range.
    """

    vocabulary: int = size_field(151936, "number of tokens", "vocab_size", required=True)
    width: int = size_field(2048, "size of hidden states", "hidden_size", required=True)
    layers: int = depth_field(48, "number of layers", "num_hidden_layers", required=True)
    heads: int = size_field(16, "number of query heads of attention", "num_attention_heads", required=True)
    key_value_heads: int = size_field(
        2, "number of heads of keys and values of attention", "num_key_value_heads", divides="heads"
    )
    head_dim: int = size_field(256, "size of a head of attention", "head_dim")
    attention_layers: tuple[int, ...] | None = model_field(
        None,
        "the layers with attention, counted from 0; None is every fourth",
        "layer_types",
        example="for example attention_layers=(3, 7)",
        read=lambda config, name: _read_attention_layers(config),
    )
    delta_heads: int = size_field(32, "number of heads of values of a gated delta net", "linear_num_value_heads")
    delta_key_heads: int = size_field(
        16, "number of its heads of queries and keys", "linear_num_key_heads", divides="delta_heads"
    )
    delta_head_dim: int = size_field(128, "size of its heads of queries and keys", "linear_key_head_dim")
    delta_value_dim: int = size_field(128, "size of its heads of values", "linear_value_head_dim")
    kernel: int = size_field(4, "tokens that its convolution spans", "linear_conv_kernel_dim")
    inner: int = size_field(5632, "hidden size of feed-forward layers without experts", "intermediate_size")
    experts: int = size_field(512, "number of experts in a feed-forward layer", "num_experts")
    chosen_experts: int = size_field(10, "number of experts that a token uses", "num_experts_per_tok")
    normalized_shares: bool = model_field(
        True, "whether the shares of the experts that a token uses sum to 1", "norm_topk_prob"
    )
    expert_inner: int = size_field(512, "hidden size of an expert", "moe_intermediate_size")
    shared_inner: int = size_field(
        512, "hidden size of the expert that every token uses", "shared_expert_intermediate_size"
    )
    expert_step: int = size_field(1, "every so many layers one has experts", "decoder_sparse_step")
    dense_layers: tuple[int, ...] = model_field(
        (),
        "layers without experts, counted from 0, beside those of ``expert_step``",
        "mlp_only_layers",
        minimum=0,
        read=lambda config, name: () if config.fields.get(name) is None else config.listed(name, default=()),
    )
    max_length: int = size_field(
        32768, "length of the longest text that the model was trained for", "max_position_embeddings"
    )
    rotary: RotaryConfig = model_field(
        RotaryConfig(rotated=64), "the positions of attention", example="for example RotaryConfig(base=10_000_000.0)"
    )
    epsilon: float = model_field(1e-6, "epsilon of the norms", "rms_norm_eps", minimum=0.0)
    attention_bias: bool = model_field(False, "whether the projections of attention have biases", "attention_bias")
    attention_dropout: float = probability_field(
        0.0, "probability of dropping an attention weight in training", "attention_dropout"
    )
    tied: bool = model_field(False, "whether the output layer shares the embedding", "tie_word_embeddings")
    deviation: float = model_field(0.02, "standard deviation of initial weights", "initializer_range", minimum=0.0)
    pad_id: int | None = special_id_field("the padding token", "pad_token_id")
    start_id: int | None = special_id_field("the start token", "bos_token_id")
    end_ids: tuple[int, ...] = end_ids_field((), absent=())

    model_name = "Qwen3-Next"

    def __post_init__(self) -> None:
        check_fields(self)
        check_weights(vocabulary=self.vocabulary, width=self.width)
        for name in ("attention_layers", "dense_layers"):
            outside = [layer for layer in getattr(self, name) or () if not 0 <= layer < self.layers]
            if outside:
                raise OptionError(
                    f"{name} names layers that the model does not have",
                    expected=f"numbers from 0 to {self.layers - 1}",
                    got=", ".join(map(str, outside)),
                    do="count layers from 0",
                )

    def has_attention(self, layer: int) -> bool:
        """Whether a layer attends; else it is a gated delta net."""
        return layer % 4 == 3 if self.attention_layers is None else layer in self.attention_layers

    def has_experts(self, layer: int) -> bool:
        """Whether the feed-forward layer of a layer is a mixture of experts."""
        return layer not in self.dense_layers and (layer + 1) % self.expert_step == 0

    @classmethod
    def from_hugging_face(cls, config: ConfigFile) -> Qwen3NextConfig:
        """Read the config from a Hugging Face config.json. Raises CheckpointError for missing or unusable fields."""
        config.require("hidden_act", "silu", default="silu")
        head_dim = config.size("head_dim", default=256)
        named = ConfigFile({"partial_rotary_factor": _ROTATED_SHARE, **config.fields}, config.path)
        return read_published(cls, config, rotary=RotaryConfig.from_hugging_face(named, head_dim=head_dim))

    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``."""
        return {
            "architectures": ["Qwen3NextForCausalLM"],
            "model_type": "qwen3_next",
            **write_published(self),
            "layer_types": [_FULL if self.has_attention(layer) else _DELTA for layer in range(self.layers)],
            "rope_parameters": {"partial_rotary_factor": 1.0, **self.rotary.to_hugging_face(self.head_dim)},
        }


def _read_attention_layers(config: ConfigFile) -> tuple[int, ...] | None:
    """Read the layers with attention: older files have the interval between two of them."""
    layers = config.size("num_hidden_layers")
    listed = config.layer_types(layers, (_DELTA, _FULL))
    if listed is None:
        interval = config.size("full_attention_interval", default=4)
        found = tuple(layer for layer in range(layers) if (layer + 1) % interval == 0)
    else:
        found = tuple(layer for layer, kind in enumerate(listed) if kind == _FULL)
    return None if found == tuple(range(3, layers, 4)) else found


@final
@explain_arguments
class Qwen3Next(CausalLanguageModel):
    """A Qwen3-Next with random initial weights; ``regard.load`` loads a trained one."""

    config: Qwen3NextConfig
    config_class = Qwen3NextConfig
    model_types = ("qwen3_next",)

    def __init__(self, config: Qwen3NextConfig) -> None:
        super().__init__(config)
        rotary = config.rotary.build(config.head_dim)
        layers = (_make_layer(config, layer, rotary) for layer in range(config.layers))
        self._add_layers(layers, _make_norm(config, config.width))

    @classmethod
    def make_weight_names(cls, config: Qwen3NextConfig) -> WeightNames:
        """Make the table of the names of weights in a file; weights that predict several tokens are ignored."""
        numbers = range(config.layers)
        attention = tuple(layer for layer in numbers if config.has_attention(layer))
        delta = tuple(layer for layer in numbers if not config.has_attention(layer))
        mixer = "layers.{n}.attention"
        return WeightNames(
            (
                *(replace(row, layers=attention) for row in _ATTENTION_ROWS),
                Row(
                    "layers.{n}.self_attn.q_proj",
                    (f"{mixer}.query_projection", f"{mixer}.gate_projection"),
                    heads=config.heads,
                    layers=attention,
                ),
                *mixer_rows(GatedDeltaNet, "layers.{n}.linear_attn", mixer, heads=config.delta_key_heads, layers=delta),
                *_ROWS,
            ),
            prefix="model.",
            outer=("lm_head",),
            ignored_patterns=(r"mtp\..*",),
            heads=("score.",),
            tied_weights=tied_output_weights(config),
        )


def _make_layer(config: Qwen3NextConfig, layer: int, rotary: Rotary) -> DecoderBlock:
    return DecoderBlock(
        attention=_make_attention(config, rotary) if config.has_attention(layer) else _make_delta_net(config),
        feed_forward=_make_feed_forward(config, layer),
        attention_residual=PreNorm(_make_norm(config, config.width)),
        feed_forward_residual=PreNorm(_make_norm(config, config.width)),
    )


def _make_attention(config: Qwen3NextConfig, rotary: Rotary) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.width,
        config.heads,
        key_value_heads=config.key_value_heads,
        head_dim=config.head_dim,
        mechanism=DotProduct(heads=config.heads, head_dim=config.head_dim, dropout=config.attention_dropout),
        position=rotary,
        bias=config.attention_bias,
        query_norm=_make_norm(config, config.head_dim),
        key_norm=_make_norm(config, config.head_dim),
        output_gate=True,
    )


def _make_delta_net(config: Qwen3NextConfig) -> GatedDeltaNet:
    return GatedDeltaNet(
        config.width,
        config.delta_heads,
        head_dim=config.delta_head_dim,
        key_heads=config.delta_key_heads,
        value_dim=config.delta_value_dim,
        kernel=config.kernel,
        epsilon=config.epsilon,
    )


def _make_feed_forward(config: Qwen3NextConfig, layer: int) -> FeedForward | SharedExpertMixture:
    if not config.has_experts(layer):
        return FeedForward(config.width, config.inner, activation="swiglu", bias=False)
    return SharedExpertMixture(
        config.width,
        config.expert_inner,
        experts=config.experts,
        chosen=config.chosen_experts,
        shared_inner=config.shared_inner,
        normalized=config.normalized_shares,
    )


def _make_norm(config: Qwen3NextConfig, width: int) -> RMSNorm:
    return RMSNorm(width, epsilon=config.epsilon, offset=1.0)


_MIXER, _FEED_FORWARD = "layers.{n}.attention.", "layers.{n}.feed_forward."
_ATTENTION_ROWS = (
    Row("layers.{n}.self_attn.k_proj", f"{_MIXER}key_projection"),
    Row("layers.{n}.self_attn.v_proj", f"{_MIXER}value_projection"),
    Row("layers.{n}.self_attn.o_proj", f"{_MIXER}output_projection"),
    Row("layers.{n}.self_attn.q_norm", f"{_MIXER}query_norm"),
    Row("layers.{n}.self_attn.k_norm", f"{_MIXER}key_norm"),
)
_ROWS = (
    Row("embed_tokens", "token_embedding"),
    Row("layers.{n}.input_layernorm", "layers.{n}.attention_residual.norm"),
    Row("layers.{n}.post_attention_layernorm", "layers.{n}.feed_forward_residual.norm"),
    Row("layers.{n}.mlp.gate", f"{_FEED_FORWARD}router"),
    Row("layers.{n}.mlp.shared_expert_gate", f"{_FEED_FORWARD}shared_gate"),
    *(
        Row(f"layers.{{n}}.mlp.{stored}{part}_proj", f"{_FEED_FORWARD}{ours}{part}")
        for stored, ours in (("", ""), ("shared_expert.", "shared."), ("experts.{path}.", "experts.{path}."))
        for part in ("gate", "up", "down")
    ),
    Row("norm", "norm"),
    Row("lm_head", "output"),
)
"""Weight names in Hugging Face files, and in this model, but for those that are fused head by head."""


@explain_arguments
def qwen_3_next_80b() -> Qwen3Next:
    """Qwen3-Next 80B, untrained: 48 layers of width 2,048, 512 experts in each."""
    return Qwen3Next(Qwen3NextConfig())
