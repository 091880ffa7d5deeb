"""Llama-type decoders: Llama, Mistral, Qwen 2 and 3, Phi 3, Gemma 2 and 3, gpt-oss, by options of one model.

Models of the type "regard-llama" have any causal mechanism of the catalogue, in each layer another if wanted.

    h_0 = tokens[ids]                                                  * sqrt(width) in Gemma
    a   = h + MultiHead(norm(h)),   h' = a + FFN(norm(a))              for each layer, causal, or in a causal window
    FFN(x) = (act(x W_g) * x W_u) W_d
    logits = norm(h_L) W^T

Queries and keys are rotated by their positions, and in Qwen 3 and Gemma 3 normalised before; several query heads share
the keys and values of one. In Gemma each sublayer has a norm after it as well; in gpt-oss the softmax has a sink, and
FFN is a mixture of experts (``layers.mixture_of_experts``). ``llama_config`` has the sources.
ids (batch, length) -> hidden (batch, length, width), logits (batch, length, vocabulary).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard import masks
from regard.arguments import explain_arguments
from regard.errors import OptionError
from regard.layers import (
    DecoderBlock,
    FeedForward,
    MixtureOfExperts,
    MultiHeadAttention,
    PreNorm,
    Residual,
    RMSNorm,
    SandwichNorm,
)
from regard.layers.scan_mixer import ScanMixer
from regard.masks import Mask
from regard.mechanism_catalogue import mechanism as make_mechanism
from regard.mechanisms import DotProduct, Mechanism
from regard.models.causal_language_model import CausalLanguageModel, tied_output_weights
from regard.models.layer_mechanism import (
    MIXERS,
    check_decodes,
    check_layer_options,
    choose_rotation,
    make_mixer,
    options_of_layer,
)
from regard.models.llama_config import LlamaConfig
from regard.models.llama_types import MODEL_TYPES
from regard.models.model_folder import ModelFolder
from regard.models.rotary_config import RotaryConfig
from regard.models.text_part import TEXT_TYPES, select_text_part
from regard.models.weight_names import Row, WeightNames, attention_rows
from regard.positions import DynamicScaling, Llama3Scaling, Rotary

_COMMON_ROWS = (
    Row("embed_tokens", "token_embedding"),
    Row("layers.{n}.input_layernorm", "layers.{n}.attention_residual.norm"),
    Row("layers.{n}.self_attn.q_norm", "layers.{n}.attention.query_norm"),
    Row("layers.{n}.self_attn.k_norm", "layers.{n}.attention.key_norm"),
    Row("layers.{n}.self_attn.o_proj", "layers.{n}.attention.output_projection"),
    Row("layers.{n}.mlp.down_proj", "layers.{n}.feed_forward.down"),
    Row("norm", "norm"),
    Row("lm_head", "output"),
)
_PROJECTIONS = tuple(f"layers.{{n}}.attention.{side}_projection" for side in ("query", "key", "value"))
_GATE_AND_UP = ("layers.{n}.feed_forward.gate", "layers.{n}.feed_forward.up")
_SEPARATE_ROWS = (
    *attention_rows("layers.{n}.self_attn.{side}_proj", "layers.{n}.attention", ("q", "k", "v")),
    Row("layers.{n}.mlp.gate_proj", _GATE_AND_UP[0]),
    Row("layers.{n}.mlp.up_proj", _GATE_AND_UP[1]),
)
_FUSED_ROWS = (
    Row("layers.{n}.self_attn.qkv_proj", _PROJECTIONS),
    Row("layers.{n}.mlp.gate_up_proj", _GATE_AND_UP),
)
_SINK_ROWS = (Row("layers.{n}.self_attn", "layers.{n}.attention.mechanism"),)
_MECHANISM_ROWS = tuple(
    Row(f"layers.{{n}}.self_attn.{part}.{{path}}", f"layers.{{n}}.attention.{part}.{{path}}", tensors=True)
    for part in ("mechanism", "input_projections")
)
_EXPERT_ROWS = (
    Row("layers.{n}.mlp.router", "layers.{n}.feed_forward.router"),
    Row("layers.{n}.mlp.experts", "layers.{n}.feed_forward.experts"),
)
_PRE_NORM_ROWS = (Row("layers.{n}.post_attention_layernorm", "layers.{n}.feed_forward_residual.norm"),)
_SANDWICH_ROWS = (
    Row("layers.{n}.post_attention_layernorm", "layers.{n}.attention_residual.output_norm"),
    Row("layers.{n}.pre_feedforward_layernorm", "layers.{n}.feed_forward_residual.norm"),
    Row("layers.{n}.post_feedforward_layernorm", "layers.{n}.feed_forward_residual.output_norm"),
)
"""Weight names in Hugging Face files, and in this model."""


@final
@explain_arguments
class Llama(CausalLanguageModel):
    """A Llama-type decoder with random initial weights; ``regard.load`` loads a trained one."""

    config: LlamaConfig
    config_class = LlamaConfig
    model_types = (*MODEL_TYPES, *TEXT_TYPES)

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        rotary = config.rotary.build(config.head_width)
        window_rotary = rotary if config.window_rotary is None else config.window_rotary.build(config.head_width)
        layers = (
            _make_layer(config, layer, rotary if config.layer_window(layer) is None else window_rotary)
            for layer in range(config.layers)
        )
        self._add_layers(layers, _make_norm(config, config.width))
        self._check_mechanisms()

    def embed(
        self, ids: Int[Tensor, "batch length"], positions: Int[Tensor, "#batch length"]
    ) -> Float[Tensor, "batch length width"]:
        """Embed checked token ids, scaled if the config says so."""
        embedded = super().embed(ids, positions)
        if not self.config.scale_embedding:
            return embedded
        # In half precision the factor is rounded first, as in the published code.
        return embedded * float(torch.tensor(math.sqrt(self.config.width), dtype=embedded.dtype, device="cpu"))

    def finish_logits(self, logits: Float[Tensor, "*rows vocabulary"]) -> Float[Tensor, "*rows vocabulary"]:
        """Cap the results of the output layer, if the config says so."""
        cap = self.config.logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def _check_mechanisms(self) -> None:
        """Raise OptionError for a mechanism that does not support the mask of its layer, or an option that none has."""
        check_layer_options(self.config.mechanisms, self.config.mechanism_options)
        for layer, block in enumerate(self._blocks):
            name, mechanism = self.config.layer_mechanism(layer), block.attention.mechanism
            check_decodes(
                mechanism,
                name,
                masks.causal(),
                what="a language model",
                expected="mechanisms that support the causal mask, and steps",
                do='choose another mechanism, such as "dot_product"',
            )
            window = self.config.layer_window(layer)
            reason = None if window is None else mechanism.refuses_mask(masks.window(0, 0))  # as any window
            if reason is not None:
                raise OptionError(
                    f"layer {layer} has a window, which {name} does not support: {reason}",
                    expected="windows in layers whose mechanism supports them, and None in the others",
                    got=f"a window of {window} and {name}",
                    do=f'set windows[{layer}]=None, or choose another mechanism, such as "dot_product"',
                )

    @property
    def layer_masks(self) -> Sequence[Mask]:
        """The mask of each layer: causal, or a window of a number of tokens that ends with the query's own."""
        windows = [self.config.layer_window(layer) for layer in range(self.config.layers)]
        own = {size: masks.causal() if size is None else masks.window(size - 1, 0) for size in windows}
        return [own[size] for size in windows]

    @property
    def max_tokens(self) -> int:
        """The length of the longest text that the model was trained for, or that its scaling stretches it to."""
        scaling = self.config.rotary.scaling
        longer = scaling.factor if isinstance(scaling, DynamicScaling) else 1.0
        return int(self.config.max_length * longer)

    @classmethod
    def from_folder(cls, folder: ModelFolder, *, dtype: torch.dtype) -> Self:
        """Load the model of an opened folder, or the language model in it: see ``Model.from_folder``."""
        part = select_text_part(folder) if folder.model_type in TEXT_TYPES else folder
        return super().from_folder(part, dtype=dtype)

    @classmethod
    def make_weight_names(cls, config: LlamaConfig) -> WeightNames:
        """Make the table of the names of weights in a file; old files hold the frequencies of the rotation too."""
        mixers = tuple(layer for layer, name in enumerate(config.mechanisms) if name in MIXERS)
        return WeightNames(
            (Row("layers.{n}.self_attn.{path}", "layers.{n}.attention.{path}", tensors=True, layers=mixers),)
            + _COMMON_ROWS
            + (_FUSED_ROWS if MODEL_TYPES[config.model_type].fused else _SEPARATE_ROWS)
            + (_SINK_ROWS if config.sinks else ())
            + (_MECHANISM_ROWS if config.mechanisms else ())
            + (_EXPERT_ROWS if config.experts is not None else ())
            + (_SANDWICH_ROWS if config.sandwich_norms else _PRE_NORM_ROWS),
            prefix="model.",
            outer=("lm_head",),
            ignored_patterns=(r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",),
            heads=("score.",),
            tied_weights=tied_output_weights(config),
        )


def _make_layer(config: LlamaConfig, layer: int, rotary: Rotary) -> DecoderBlock:
    return DecoderBlock(
        attention=_make_attention(config, layer, rotary),
        feed_forward=_make_feed_forward(config),
        attention_residual=_make_residual(config),
        feed_forward_residual=_make_residual(config),
    )


def _make_attention(config: LlamaConfig, layer: int, rotary: Rotary) -> MultiHeadAttention | ScanMixer:
    """Make the attention of a layer, or the mixer that it has in place of it."""
    name = config.layer_mechanism(layer)
    if name in MIXERS:
        options = options_of_layer(name, config.mechanism_options, layer)
        return make_mixer(name, config.width, config.heads, config.head_width, options)
    mechanism = _make_mechanism(config, layer)
    query_norm, key_norm = (
        _make_norm(config, config.head_width) if config.query_key_norm else None for _ in ("query", "key")
    )
    return MultiHeadAttention(
        config.width,
        config.heads,
        key_value_heads=config.key_value_heads,
        head_dim=config.head_width,
        mechanism=mechanism,
        position=choose_rotation(mechanism, rotary),
        bias=config.attention_bias,
        output_bias=config.output_bias,
        query_norm=query_norm,
        key_norm=key_norm,
    )


def _make_feed_forward(config: LlamaConfig) -> FeedForward | MixtureOfExperts:
    if config.experts is None or config.chosen_experts is None:
        return FeedForward(config.width, config.inner, activation=config.activation, bias=config.feed_forward_bias)
    return MixtureOfExperts(config.width, config.inner, experts=config.experts, chosen=config.chosen_experts)


def _make_mechanism(config: LlamaConfig, layer: int) -> Mechanism:
    name = config.layer_mechanism(layer)
    if name != "dot_product":
        options = options_of_layer(name, config.mechanism_options, layer)
        dropout = {"dropout": config.attention_dropout} if config.attention_dropout else {}
        return make_mechanism(name, heads=config.heads, head_dim=config.head_width, **dropout, **options)
    return DotProduct(
        heads=config.heads,
        head_dim=config.head_width,
        scale=config.scale,
        softcap=config.softcap,
        sinks=config.sinks,
        dropout=config.attention_dropout,
    )


def _make_residual(config: LlamaConfig) -> Residual:
    norm = _make_norm(config, config.width)
    return SandwichNorm(norm, output_norm=_make_norm(config, config.width)) if config.sandwich_norms else PreNorm(norm)


def _make_norm(config: LlamaConfig, width: int) -> RMSNorm:
    return RMSNorm(width, epsilon=config.epsilon, offset=config.norm_offset)


@explain_arguments
def llama_3_1_8b() -> Llama:
    """Llama 3.1 8B, untrained. Grattafiori et al. 2024, table 3."""
    rotary = RotaryConfig(base=500_000.0, scaling=Llama3Scaling(8.0, 8192))
    return Llama(
        LlamaConfig(
            vocabulary=128256,
            key_value_heads=8,
            inner=14336,
            max_length=131072,
            rotary=rotary,
            start_id=128000,
            end_ids=(128001,),
        )
    )


@explain_arguments
def llama_3_2_1b() -> Llama:
    """Llama 3.2 1B, untrained: 16 layers of width 2,048."""
    return Llama(
        LlamaConfig(
            vocabulary=128256,
            width=2048,
            layers=16,
            key_value_heads=8,
            inner=8192,
            max_length=131072,
            rotary=RotaryConfig(base=500_000.0, scaling=Llama3Scaling(32.0, 8192)),
            tied=True,
            start_id=128000,
            end_ids=(128001,),
        )
    )


@explain_arguments
def mistral_7b() -> Llama:
    """Mistral 7B, untrained, with a window of 4,096 in every layer. Jiang et al. 2023, table 1."""
    return Llama(
        LlamaConfig(
            key_value_heads=8,
            inner=14336,
            max_length=32768,
            windows=(4096,) * 32,
            start_id=1,
            end_ids=(2,),
            model_type="mistral",
        )
    )


@explain_arguments
def qwen_2_5_0_5b() -> Llama:
    """Qwen 2.5 0.5B, untrained: 24 layers of width 896. Qwen team 2024, "Qwen2.5 technical report", table 1."""
    return Llama(
        LlamaConfig(
            vocabulary=151936,
            width=896,
            layers=24,
            heads=14,
            key_value_heads=2,
            inner=4864,
            max_length=32768,
            epsilon=1e-6,
            rotary=RotaryConfig(base=1_000_000.0),
            attention_bias=True,
            tied=True,
            end_ids=(151643,),
            model_type="qwen2",
        )
    )


@explain_arguments
def qwen_3_0_6b() -> Llama:
    """Qwen 3 0.6B, untrained: 28 layers of width 1,024. Yang et al. 2025, table 1."""
    return Llama(
        LlamaConfig(
            vocabulary=151936,
            width=1024,
            layers=28,
            heads=16,
            key_value_heads=8,
            head_dim=128,
            inner=3072,
            max_length=40960,
            epsilon=1e-6,
            rotary=RotaryConfig(base=1_000_000.0),
            query_key_norm=True,
            tied=True,
            end_ids=(151645,),
            model_type="qwen3",
        )
    )


@explain_arguments
def gemma_2_2b() -> Llama:
    """Gemma 2 2B, untrained: every second layer has a window of 4,096. Gemma team 2024, table 1."""
    layers = 26
    return Llama(
        LlamaConfig(
            vocabulary=256000,
            width=2304,
            layers=layers,
            heads=8,
            key_value_heads=4,
            head_dim=256,
            inner=9216,
            max_length=8192,
            activation="geglu_tanh",
            epsilon=1e-6,
            windows=tuple(4096 if layer % 2 == 0 else None for layer in range(layers)),
            scale=256**-0.5,
            softcap=50.0,
            logit_softcap=30.0,
            sandwich_norms=True,
            norm_offset=1.0,
            scale_embedding=True,
            tied=True,
            pad_id=0,
            start_id=2,
            end_ids=(1,),
            model_type="gemma2",
        )
    )


@explain_arguments
def gemma_3_1b() -> Llama:
    """Gemma 3 1B, untrained: 5 layers with a window of 512, then one without, and so on. Gemma team 2025, table 1."""
    layers = 26
    return Llama(
        LlamaConfig(
            vocabulary=262144,
            width=1152,
            layers=layers,
            heads=4,
            key_value_heads=1,
            head_dim=256,
            inner=6912,
            max_length=32768,
            activation="geglu_tanh",
            epsilon=1e-6,
            rotary=RotaryConfig(base=1_000_000.0),
            windows=tuple(512 if layer % 6 != 5 else None for layer in range(layers)),
            window_rotary=RotaryConfig(base=10_000.0),
            scale=256**-0.5,
            query_key_norm=True,
            sandwich_norms=True,
            norm_offset=1.0,
            scale_embedding=True,
            tied=True,
            pad_id=0,
            start_id=2,
            end_ids=(1,),
            model_type="gemma3_text",
        )
    )
