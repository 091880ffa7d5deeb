"""The hyperparameters of a Llama-type decoder, and its config.json; ``llama_types`` lists the model types.

Touvron et al. 2023 (Llama), section 2.2; Grattafiori et al. 2024 (Llama 3), section 3.2; Jiang et al. 2023 (Mistral),
section 2; Yang et al. 2024 (Qwen2), section 2.2.1; Yang et al. 2025 (Qwen3), section 2; Abdin et al. 2024 (Phi-3),
section 2; Gemma team 2024 (Gemma 2), section 2, and 2025 (Gemma 3), section 2; OpenAI 2025
(gpt-oss), section 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, final

from regard.arguments import explain_arguments
from regard.errors import (
    OptionError,
    check_choice,
    check_count,
    check_dropout,
    check_flag,
    check_kind,
    check_number,
    check_size,
    check_weights,
    short_repr,
)
from regard.models.activation_names import ACTIVATIONS
from regard.models.config_file import MAX_LAYERS, ConfigFile
from regard.models.llama_fields import read_free_fields, read_windows
from regard.models.llama_types import FULL, MODEL_TYPES, PLAIN, WINDOW, ModelType
from regard.models.rotary_config import RotaryConfig
from regard.models.special_ids import check_special_ids, join_end_ids, read_end_ids, read_special_id
from regard.positions import DynamicScaling

_GATES = {"silu": "swiglu", "gelu_tanh": "geglu_tanh", "gelu": "geglu", "relu": "reglu"}
"""Gated feed-forward layers, by the activation of the gate."""
_GATED = {name: _GATES[ours] for name, ours in ACTIVATIONS.items() if ours in _GATES}
"""Gated feed-forward layers, by Hugging Face's name of the activation."""
_ACTIVATION_NAMES = {"swiglu": "silu", "geglu_tanh": "gelu_pytorch_tanh", "geglu": "gelu", "reglu": "relu"}


@final
@explain_arguments
@dataclass(frozen=True)
class LlamaConfig:
    """The hyperparameters of a Llama-type decoder. Defaults are Llama 2 with 7 billion weights.

    Args:
        vocabulary: number of tokens.
        width: size of hidden states.
        layers: number of layers.
        heads: number of query heads.
        key_value_heads: number of heads of keys and values, a divisor of ``heads``; None is ``heads``.
        head_dim: size of a head; None is width / heads.
        inner: hidden size of the feed-forward layers.
        max_length: length of the longest text that the model was trained for.
        activation: the gated feed-forward: "swiglu", "geglu_tanh", "geglu" or "reglu".
        epsilon: that of the norms.
        rotary: the positions.
        windows: for each layer the number of tokens that a token may attend to, itself included, or None for all
            earlier ones; () is None for every layer.
        window_rotary: the positions in layers with a window; None is ``rotary``.
        scale: factor of the scores; None is 1 / sqrt(head_dim).
        softcap: scores are c tanh(score / c); None is no cap.
        sinks: whether the softmax of each head has a trained sink.
        experts: number of experts in the feed-forward layers; None is a single gated layer.
        chosen_experts: number of experts that a token uses.
        query_key_norm: whether the queries and the keys of each head are normalised, by an RMS norm.
        sandwich_norms: whether sublayers have a norm after them too.
        norm_offset: number added to the trained weights of norms: 1 for Gemma, else 0.
        attention_bias: whether the projections of queries, keys and values have biases.
        output_bias: whether the output projection of attention has one.
        feed_forward_bias: whether the feed-forward layers have biases.
        scale_embedding: whether the embedding is multiplied by sqrt(width).
        logit_softcap: logits are c tanh(logit / c); None is no cap.
        tied: whether the output layer shares the matrix of the embedding.
        attention_dropout: probability of dropping an attention weight in training.
        deviation: standard deviation of the initial weights.
        pad_id: the padding token; None if there is none.
        start_id: the start token; None if there is none.
        end_ids: the tokens that end a text.
        model_type: the type in config.json, one of ``MODEL_TYPES``, which must be able to say all the others.

    Raises OptionError for values out of range, and for those that the model type does not have.
    """

    vocabulary: int = 32000
    width: int = 4096
    layers: int = 32
    heads: int = 32
    key_value_heads: int | None = None
    head_dim: int | None = None
    inner: int = 11008
    max_length: int = 4096
    activation: str = "swiglu"
    epsilon: float = 1e-5
    rotary: RotaryConfig = field(default_factory=RotaryConfig)
    windows: tuple[int | None, ...] = ()
    window_rotary: RotaryConfig | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: bool = False
    experts: int | None = None
    chosen_experts: int | None = None
    query_key_norm: bool = False
    sandwich_norms: bool = False
    norm_offset: float = 0.0
    attention_bias: bool = False
    output_bias: bool = False
    feed_forward_bias: bool = False
    scale_embedding: bool = False
    logit_softcap: float | None = None
    tied: bool = False
    attention_dropout: float = 0.0
    deviation: float = 0.02
    pad_id: int | None = None
    start_id: int | None = None
    end_ids: tuple[int, ...] = ()
    model_type: str = "llama"

    def __post_init__(self) -> None:
        for name in ("vocabulary", "width", "heads", "inner", "max_length"):
            check_size(name, getattr(self, name))
        check_count("layers", self.layers, most=MAX_LAYERS)
        check_weights(vocabulary=self.vocabulary, width=self.width)
        check_special_ids(self.vocabulary, pad_id=self.pad_id, start_id=self.start_id, end_ids=self.end_ids)
        check_dropout(self.attention_dropout)
        for one in fields(self):
            if one.type == "bool":
                check_flag(one.name, getattr(self, one.name))
        check_number("epsilon", self.epsilon, least=0.0)
        check_number("deviation", self.deviation, least=0.0)
        check_number("norm_offset", self.norm_offset)
        for name in ("experts", "chosen_experts"):
            if getattr(self, name) is not None:
                check_size(name, getattr(self, name))
        for name in ("scale", "softcap", "logit_softcap"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), above=0.0)
        check_choice("activation of a Llama", self.activation, set(_GATES.values()))
        check_kind("rotary", self.rotary, RotaryConfig, do="for example RotaryConfig(base=500_000.0)")
        self._check_windows()
        check_choice("model_type of a Llama", self.model_type, MODEL_TYPES)
        self._check_model_type()

    @property
    def head_width(self) -> int:
        """The number of components of a head: ``head_dim``, or its share of the width."""
        return self.width // self.heads if self.head_dim is None else self.head_dim

    def layer_window(self, layer: int) -> int | None:
        """The window of a layer; None if it has none."""
        return self.windows[layer] if self.windows else None

    @classmethod
    def from_hugging_face(cls, config: ConfigFile) -> LlamaConfig:
        """Read the config from a Hugging Face config.json. Raises CheckpointError for missing or unusable fields."""
        kind = MODEL_TYPES[config.model_type]
        heads, layers = config.size("num_attention_heads"), config.size("num_hidden_layers")
        head_dim = kind.head_dim if config.fields.get("head_dim") is None else config.size("head_dim")
        if head_dim is None and config.size("hidden_size") % heads:
            config.size("num_attention_heads", divides="hidden_size")
        head_width = config.size("hidden_size") // heads if head_dim is None else head_dim
        key_value_heads = None
        if config.fields.get("num_key_value_heads") is not None:
            key_value_heads = config.size("num_key_value_heads", divides="num_attention_heads")
        for name in ("resid_pdrop", "embd_pdrop"):
            config.require(name, 0.0, default=0.0)
        if config.flag("use_bidirectional_attention", default=False):
            config.require("use_bidirectional_attention", False, default=False)
        if "softcap" not in kind.free:  # transformers ignores it in Gemma 3, so the file does not say what was trained
            config.require("attn_logit_softcapping", None, default=None)
        if "experts" in kind.free:  # the published weights are quantised to 4 bits, which is not supported
            for name, only in (("quantization_config", None), ("swiglu_limit", 7.0), ("swiglu_alpha", 1.702)):
                config.require(name, only, default=only)
        windows = read_windows(config, kind, layers)
        section = FULL if "window_rotary" in kind.free else None
        rotary = RotaryConfig.from_hugging_face(
            config,
            head_dim=head_width,
            base=kind.base,
            section=section,
            default=kind.rope,
            is_partial=kind.fused,
        )
        return config.build(
            cls,
            vocabulary=config.size("vocab_size"),
            width=config.size("hidden_size"),
            layers=layers,
            heads=heads,
            key_value_heads=None if key_value_heads == heads else key_value_heads,
            head_dim=None if head_width * heads == config.size("hidden_size") else head_width,
            inner=config.size("intermediate_size"),
            max_length=config.size("max_position_embeddings"),
            activation=_GATED[config.choice(kind.activation_field, _GATED, default=_default_activation(kind))],
            epsilon=config.number("rms_norm_eps", default=kind.epsilon),
            rotary=rotary,
            windows=windows,
            tied=config.flag("tie_word_embeddings", default=kind.tied),
            attention_dropout=config.number("attention_dropout", default=0.0, below=1.0),
            deviation=config.number("initializer_range", default=0.02),
            pad_id=read_special_id(config, "pad_token_id"),
            start_id=read_special_id(config, "bos_token_id"),
            end_ids=read_end_ids(config),
            model_type=config.model_type,
            **{**read_free_fields(config, kind, head_width), **kind.fixed},
        )

    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``."""
        kind = MODEL_TYPES[self.model_type]
        written: dict[str, Any] = {
            "architectures": [kind.architecture],
            "model_type": self.model_type,
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads if self.key_value_heads is None else self.key_value_heads,
            "head_dim": self.head_width,
            "intermediate_size": self.inner,
            "max_position_embeddings": self.max_length,
            kind.activation_field: _ACTIVATION_NAMES[self.activation],
            "rms_norm_eps": self.epsilon,
            "rope_parameters": self.rotary.to_hugging_face(self.head_width),
            "tie_word_embeddings": self.tied,
            "attention_dropout": self.attention_dropout,
            "initializer_range": self.deviation,
            "pad_token_id": self.pad_id,
            "bos_token_id": self.start_id,
            "eos_token_id": join_end_ids(self.end_ids),
        }
        if "attention_bias" in kind.free:
            written["attention_bias"] = self.attention_bias
        if "feed_forward_bias" in kind.free:
            written["mlp_bias"] = self.feed_forward_bias
        if "experts" in kind.free:
            written |= {"num_local_experts": self.experts, "num_experts_per_tok": self.chosen_experts}
        if "scale" in kind.free:
            written["query_pre_attn_scalar"] = self._scale_divisor()
            written |= {"final_logit_softcapping": self.logit_softcap, "attn_logit_softcapping": self.softcap}
        if "window_rotary" in kind.free:
            of_windows = self.rotary if self.window_rotary is None else self.window_rotary
            written["rope_parameters"] = {
                FULL: written["rope_parameters"],
                WINDOW: of_windows.to_hugging_face(self.head_width),
            }
        if self.model_type == "phi3" and "original_max_position_embeddings" in written["rope_parameters"]:
            written["original_max_position_embeddings"] = written["rope_parameters"]["original_max_position_embeddings"]
        return written | self._window_fields()

    def _window_fields(self) -> dict[str, Any]:
        """The fields of the windows in a config.json."""
        kind = MODEL_TYPES[self.model_type]
        if "windows" not in kind.free:
            return {}
        size = next((one for one in self.windows if one is not None), None)
        if self.model_type in ("mistral", "phi3"):
            return {"sliding_window": size}
        listed = [FULL if self.layer_window(layer) is None else WINDOW for layer in range(self.layers)]
        if self.model_type.startswith("qwen"):
            return {"sliding_window": size, "use_sliding_window": size is not None, "layer_types": listed}
        return {"sliding_window": kind.window if size is None else size, "layer_types": listed}

    def _scale_divisor(self) -> int:
        """The field "query_pre_attn_scalar": the scale is 1 / sqrt of this integer."""
        return self.head_width if self.scale is None else round(self.scale**-2)

    def _check_windows(self) -> None:
        if self.window_rotary is not None:
            check_kind("window_rotary", self.window_rotary, RotaryConfig, do="for example RotaryConfig(base=10_000.0)")
        check_kind("windows", self.windows, tuple, do="for example windows=(512,) * 5 + (None,), for 6 layers")
        for size in self.windows:
            if size is not None:
                check_size("windows", size)
        if self.windows and len(self.windows) != self.layers:
            raise OptionError(
                "windows has another number of layers",
                expected=f"() or {self.layers} numbers, each of them an integer or None",
                got=f"{len(self.windows)}",
                do=f"windows=(4096,) * {self.layers} is a window in every layer",
            )

    def _check_model_type(self) -> None:
        """Raise OptionError for a value that the config.json of the model type cannot say."""
        kind = MODEL_TYPES[self.model_type]
        for name, plain in {**PLAIN, **kind.fixed}.items():
            if name not in kind.free and getattr(self, name) != plain:
                others = [one for one, other in MODEL_TYPES.items() if name in other.free or name in other.fixed]
                raise OptionError(
                    f"a model of type {self.model_type!r} has a fixed {name}",
                    expected=f"{name}={plain!r}",
                    got=short_repr(getattr(self, name)),
                    do=f"leave it out, or choose model_type: {', '.join(others)}",
                )
        violation = next(self._violations(kind), None)
        if violation is not None:
            expected, got = violation
            raise OptionError(
                f"a config.json of type {self.model_type!r} cannot say these hyperparameters",
                expected=expected,
                got=got,
                do="change them, or choose another model_type",
            )

    def _violations(self, kind: ModelType) -> Iterator[tuple[str, str]]:
        """What a config.json of this type could not say, and what it could: (expected, got)."""
        bias = self.attention_bias
        if "output_bias" in kind.free and bias != self.output_bias:
            yield f"attention_bias={bias}, output_bias={bias}: equal ones", f"output_bias={self.output_bias}"
        if "experts" in kind.free and (self.experts is None or self.chosen_experts is None):
            yield (
                "experts and chosen_experts: numbers",
                f"experts={self.experts}, chosen_experts={self.chosen_experts}",
            )
        if "experts" in kind.free and self.activation != "swiglu":
            yield "activation='swiglu'", f"activation={self.activation!r}"
        sizes = set(self.windows) - {None}
        if len(sizes) > 1:
            yield "one size of all windows", f"windows={short_repr(self.windows)}"
        if self.model_type in ("mistral", "phi3") and sizes and None in self.windows:
            yield "a window in every layer, or in none", f"windows={short_repr(self.windows)}"
        if self.scale is not None and abs(self._scale_divisor() ** -0.5 - self.scale) > 1e-12 * self.scale:
            yield f"scale={self._scale_divisor()}**-0.5: 1 / sqrt of an integer", f"scale={self.scale!r}"
        if not kind.fused and self.rotary.rotated not in (None, self.head_width):
            whole = f'a rotation of the whole head, {self.head_width} components ("partial_rotary_factor": 1.0)'
            yield whole, f"rotated={self.rotary.rotated}"
        for one in (self.rotary, self.window_rotary):
            scaling = None if one is None else one.scaling
            if isinstance(scaling, DynamicScaling) and scaling.trained_length != self.max_length:
                yield (
                    f"DynamicScaling with trained_length={self.max_length}, as max_length",
                    f"trained_length={scaling.trained_length}",
                )


def _default_activation(kind: ModelType) -> str:
    return "gelu_pytorch_tanh" if kind.activation_field == "hidden_activation" else "silu"
