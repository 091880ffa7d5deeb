"""The hyperparameters of a Llama-type decoder, and its config.json; ``llama_types`` lists the model types.

Touvron et al. 2023 (Llama), section 2.2; Grattafiori et al. 2024 (Llama 3), section 3.2; Jiang et al. 2023 (Mistral),
section 2; Yang et al. 2024 (Qwen2), section 2.2.1; Yang et al. 2025 (Qwen3), section 2; Abdin et al. 2024 (Phi-3),
section 2; Gemma team 2024 (Gemma 2), section 2, and 2025 (Gemma 3), section 2; OpenAI 2025
(gpt-oss), section 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

from regard.arguments import explain_arguments
from regard.errors import OptionError, check_weights, short_repr
from regard.fields import check_fields
from regard.models.config_file import ConfigFile
from regard.models.hyperparameters import (
    ACTIVATIONS,
    depth_field,
    model_field,
    model_type_field,
    probability_field,
    read_published,
    size_field,
    write_published,
)
from regard.models.layer_mechanism import mechanism_options_field
from regard.models.llama_types import FULL, MODEL_TYPES, PLAIN, WINDOW, ModelType, read_window_rotary, read_windows
from regard.models.rotary_config import RotaryConfig
from regard.models.special_ids import end_ids_field, special_id_field
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

    ``llama_types.PLAIN`` lists the fields of config.json that not every type has. Raises OptionError for values
    out of range, and for fields that the model type does not have.
    """

    vocabulary: int = size_field(32000, "number of tokens", "vocab_size", required=True)
    width: int = size_field(4096, "size of hidden states", "hidden_size", required=True)
    layers: int = depth_field(32, "number of layers", "num_hidden_layers", required=True)
    heads: int = size_field(32, "number of query heads", "num_attention_heads", required=True)
    key_value_heads: int | None = size_field(
        None, "number of heads of keys and values, a divisor of ``heads``; None is ``heads``", "num_key_value_heads"
    )
    head_dim: int | None = size_field(None, "size of a head; None is width / heads", "head_dim")
    inner: int = size_field(11008, "hidden size of the feed-forward layers", "intermediate_size", required=True)
    max_length: int = size_field(
        4096,
        "length of the longest text that the model was trained for",
        "max_position_embeddings",
        required=True,
    )
    activation: str = model_field("swiglu", "the gated feed-forward", stored_names=_GATED)
    epsilon: float = model_field(1e-5, "epsilon of the norms", "rms_norm_eps", minimum=0.0)
    rotary: RotaryConfig = model_field(
        RotaryConfig(), "the positions", example="for example RotaryConfig(base=500_000.0)"
    )
    windows: tuple[int | None, ...] = size_field(
        (),
        "for each layer the number of tokens that a token may attend to, itself included, or None for all earlier "
        "ones; () is None for every layer",
        example="for example windows=(512,) * 5 + (None,), for 6 layers",
    )
    window_rotary: RotaryConfig | None = model_field(
        None,
        "the positions in layers with a window; None is ``rotary``",
        example="for example RotaryConfig(base=10_000.0)",
    )
    scale: float | None = model_field(
        None,
        "factor of the scores; None is 1 / sqrt(head_dim)",
        "query_pre_attn_scalar",
        above=0.0,
        read=lambda config, name: config.size(name, default=256) ** -0.5,
    )
    softcap: float | None = model_field(
        None,
        "scores are c tanh(score / c); None is no cap",
        "attn_logit_softcapping",
        above=0.0,
        read=lambda config, name: _read_cap(config, name, default=50.0),
    )
    sinks: bool = model_field(False, "whether the softmax of each head has a trained sink")
    experts: int | None = size_field(
        None,
        "number of experts in the feed-forward layers; None is a single gated layer",
        "num_local_experts",
        read=lambda config, name: config.size(name),
    )
    chosen_experts: int | None = size_field(
        None,
        "number of experts that a token uses",
        "num_experts_per_tok",
        read=lambda config, name: config.size(name),
    )
    query_key_norm: bool = model_field(
        False, "whether the queries and the keys of each head are normalised, by an RMS norm"
    )
    sandwich_norms: bool = model_field(False, "whether sublayers have a norm after them too")
    norm_offset: float = model_field(0.0, "number added to the trained weights of norms: 1 for Gemma, else 0")
    attention_bias: bool = model_field(
        False,
        "whether the projections of queries, keys and values have biases",
        "attention_bias",
        read=lambda config, name: config.flag(name, default=config.model_type == "gpt_oss"),
    )
    output_bias: bool = model_field(False, "whether the output projection of attention has a bias")
    feed_forward_bias: bool = model_field(False, "whether the feed-forward layers have biases", "mlp_bias")
    scale_embedding: bool = model_field(False, "whether the embedding is multiplied by sqrt(width)")
    logit_softcap: float | None = model_field(
        None,
        "logits are c tanh(logit / c); None is no cap",
        "final_logit_softcapping",
        above=0.0,
        read=lambda config, name: _read_cap(config, name, default=30.0),
    )
    mechanisms: tuple[str, ...] = model_field(
        (),
        "for each layer the mechanism of attention, a name in the catalogue, or a mixer in place of attention: "
        "gated_delta_net or mamba2_mixer; () is dot_product for every layer",
        "mechanisms",
        example='for example mechanisms=("gated_delta", "gated_delta", "dot_product"), for 3 layers',
    )
    mechanism_options: Mapping[str, Any] = mechanism_options_field(
        "options of mechanisms, as for ``regard.mechanism``; each is for the layers whose mechanism has it",
        stored="mechanism_options",
    )
    tied: bool = model_field(False, "whether the output layer shares the embedding", "tie_word_embeddings")
    attention_dropout: float = probability_field(
        0.0, "probability of dropping an attention weight in training", "attention_dropout"
    )
    deviation: float = model_field(0.02, "standard deviation of initial weights", "initializer_range", minimum=0.0)
    pad_id: int | None = special_id_field("the padding token", "pad_token_id")
    start_id: int | None = special_id_field("the start token", "bos_token_id")
    end_ids: tuple[int, ...] = end_ids_field((), absent=())
    model_type: str = model_type_field("llama", MODEL_TYPES)

    model_name = "Llama"

    def __post_init__(self) -> None:
        check_fields(self)
        check_weights(vocabulary=self.vocabulary, width=self.width)
        for name, kind, example in (
            ("windows", "numbers, each of them an integer or None", "(4096,) * {} is a window in every layer"),
            ("mechanisms", "names", '("gated_delta",) * {} is one mechanism for every layer'),
        ):
            count = len(getattr(self, name))
            if count not in (0, self.layers):
                raise OptionError(
                    f"{name} has another number of layers",
                    expected=f"() or {self.layers} {kind}",
                    got=str(count),
                    do=f"{name}={example.format(self.layers)}",
                )
        self._check_model_type()

    @property
    def head_width(self) -> int:
        """The number of components of a head: ``head_dim``, or its share of the width."""
        return self.width // self.heads if self.head_dim is None else self.head_dim

    def layer_window(self, layer: int) -> int | None:
        """The window of a layer; None if it has none."""
        return self.windows[layer] if self.windows else None

    def layer_mechanism(self, layer: int) -> str:
        """The name of the mechanism of a layer."""
        return self.mechanisms[layer] if self.mechanisms else "dot_product"

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
        if config.fields.get("num_key_value_heads", kind.key_value_heads) is not None:
            default = kind.key_value_heads
            key_value_heads = config.size("num_key_value_heads", default=default, divides="num_attention_heads")
        for name in ("resid_pdrop", "embd_pdrop"):
            config.require(name, 0.0, default=0.0)
        if config.flag("use_bidirectional_attention", default=False):
            config.require("use_bidirectional_attention", False, default=False)
        if "softcap" not in kind.free:  # transformers ignores it in Gemma 3, so the file does not say what was trained
            config.require("attn_logit_softcapping", None, default=None)
        if "experts" in kind.free:  # the published weights are quantised to 4 bits, which is not supported
            for name, only in (("quantization_config", None), ("swiglu_limit", 7.0), ("swiglu_alpha", 1.702)):
                config.require(name, only, default=only)
        values = {name: value for name, value in {**PLAIN, **kind.fixed}.items() if name not in kind.free}
        if "attention_bias" in kind.free:
            values["output_bias"] = config.flag("attention_bias", default=config.model_type == "gpt_oss")
        if "window_rotary" in kind.free:
            values["window_rotary"] = read_window_rotary(config, kind, head_width)
        section = FULL if "window_rotary" in kind.free else None
        values |= {
            "key_value_heads": None if key_value_heads == heads else key_value_heads,
            "head_dim": None if head_width * heads == config.size("hidden_size") else head_width,
            "activation": _GATED[config.choice(kind.activation_field, _GATED, default=_default_activation(kind))],
            "epsilon": config.number("rms_norm_eps", default=kind.epsilon),
            "windows": read_windows(config, kind, layers),
            "tied": config.flag("tie_word_embeddings", default=kind.tied),
            "rotary": RotaryConfig.from_hugging_face(
                config,
                head_dim=head_width,
                base=kind.base,
                section=section,
                default=kind.rope,
                is_partial=kind.fused,
            ),
        }
        return read_published(cls, config, **values)

    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``."""
        kind = MODEL_TYPES[self.model_type]
        unwritten = {name for name in PLAIN if name not in kind.free}
        if "scale" in kind.free:
            unwritten.discard("softcap")
        written: dict[str, Any] = {
            "architectures": [kind.architecture],
            **write_published(self, excluded=unwritten),
            "num_key_value_heads": self.heads if self.key_value_heads is None else self.key_value_heads,
            "head_dim": self.head_width,
            kind.activation_field: _ACTIVATION_NAMES[self.activation],
            "rope_parameters": self.rotary.to_hugging_face(self.head_width),
        }
        if "scale" in kind.free:
            written["query_pre_attn_scalar"] = self._scale_divisor()
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
        size = next((window for window in self.windows if window is not None), None)
        if self.model_type in ("mistral", "phi3"):
            return {"sliding_window": size}
        listed = [FULL if self.layer_window(layer) is None else WINDOW for layer in range(self.layers)]
        if self.model_type.startswith("qwen"):
            return {"sliding_window": size, "use_sliding_window": size is not None, "layer_types": listed}
        return {"sliding_window": kind.window if size is None else size, "layer_types": listed}

    def _scale_divisor(self) -> int:
        """The field "query_pre_attn_scalar": the scale is 1 / sqrt of this integer."""
        return self.head_width if self.scale is None else round(self.scale**-2)

    def _check_model_type(self) -> None:
        """Raise OptionError for a value that the config.json of the model type cannot say."""
        kind = MODEL_TYPES[self.model_type]
        for name, plain in {**PLAIN, **kind.fixed}.items():
            if name not in kind.free and getattr(self, name) != plain:
                others = [
                    model_type for model_type, other in MODEL_TYPES.items() if name in other.free or name in other.fixed
                ]
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
                f"a config.json of type {self.model_type!r} cannot store these hyperparameters",
                expected=expected,
                got=got,
                do="change them, or choose another model_type",
            )

    def _violations(self, kind: ModelType) -> Iterator[tuple[str, str]]:
        """The values that a config.json of this type can store, and those that it cannot: (expected, got)."""
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
        for rotary in (self.rotary, self.window_rotary):
            scaling = None if rotary is None else rotary.scaling
            if isinstance(scaling, DynamicScaling) and scaling.trained_length != self.max_length:
                yield (
                    f"DynamicScaling with trained_length={self.max_length}, as max_length",
                    f"trained_length={scaling.trained_length}",
                )


def _default_activation(kind: ModelType) -> str:
    return "gelu_pytorch_tanh" if kind.activation_field == "hidden_activation" else "silu"


def _read_cap(config: ConfigFile, name: str, *, default: float) -> float | None:
    """Read a softcap, which only files of Gemma 2 have by default; None is none."""
    if config.fields.get(name, default if config.model_type == "gemma2" else None) is None:
        return None
    return config.number(name, default=default)
