"""The hyperparameters of a Perceiver, and its two forms of config.json.

model_type "perceiver"           the layout of ``transformers``, for models with the inputs and outputs of the published
                                 ones, whose sizes are partly constants in its code; "architectures" names them
model_type "regard-perceiver"    the fields of ``PerceiverConfig``, for any others
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, final

from regard.arguments import explain_arguments
from regard.errors import (
    CheckpointError,
    OptionError,
    RegardError,
    check_choice,
    check_count,
    check_dropout,
    check_flag,
    check_kind,
    check_number,
    check_size,
    check_weights,
)
from regard.models.activation_names import ACTIVATIONS, activation_to_hugging_face
from regard.models.config_file import MAX_LAYERS, ConfigFile
from regard.models.perceiver_architectures import ARCHITECTURES, find_architecture
from regard.models.perceiver_blocks import CROSS_WIDTHS
from regard.models.perceiver_inputs import (
    AudioInput,
    ConvolutionInput,
    FlowInput,
    JoinedInput,
    LabelInput,
    PerceiverInput,
    PixelInput,
    TextInput,
    TokenInput,
    TrainedPixelInput,
    VideoInput,
)
from regard.models.perceiver_outputs import (
    AudioOutput,
    ClassOutput,
    FlowOutput,
    JoinedOutput,
    LabelOutput,
    OutputQueries,
    PartOutput,
    PositionOutput,
    TextOutput,
    VideoOutput,
)

MODEL_TYPE, OWN_MODEL_TYPE = "perceiver", "regard-perceiver"
_INPUTS: Mapping[str, type[PerceiverInput]] = {
    one.kind: one
    for one in (
        TokenInput,
        TextInput,
        PixelInput,
        TrainedPixelInput,
        ConvolutionInput,
        FlowInput,
        VideoInput,
        AudioInput,
        LabelInput,
        JoinedInput,
    )
}
_OUTPUTS: Mapping[str, type[OutputQueries]] = {
    one.kind: one for one in (ClassOutput, TextOutput, PositionOutput, FlowOutput, JoinedOutput)
}
_PARTS: Mapping[str, type[PartOutput]] = {one.kind: one for one in (AudioOutput, VideoOutput, LabelOutput)}
_CROSS_WIDTHS = {"kv": "inputs", "q": "queries"}
"""Hugging Face's names of what decides the width of queries and keys, and ours."""


@final
@explain_arguments
@dataclass(frozen=True)
class PerceiverConfig:
    """The hyperparameters of a Perceiver. Default sizes are those of the published model of bytes.

    Args:
        input: what is read, such as ``PixelInput(size=(28, 28), channels=1)``.
        output: what is returned, such as ``ClassOutput(labels=("cat", "dog"))``; None is the latents alone.
        latents: number of latents.
        width: size of a latent.
        layers: number of self-attention blocks.
        repeats: how often these blocks are applied, with the same weights.
        heads: number of heads of self-attention.
        cross_heads: number of heads of the cross-attention from latents to the input.
        query_key_width: size of all heads of queries and keys; None is the width of latents, and in cross-attention
            that of the input, or as ``cross_width`` says.
        value_width: size of all heads of values; None is ``query_key_width``.
        cross_width: what ``query_key_width`` of cross-attention is by default: "inputs" or "queries".
        query_residual: whether the cross-attention from latents to the input has a residual connection.
        widening: hidden size of the feed-forward layers of self-attention blocks, in widths.
        cross_widening: the same for the block of cross-attention.
        activation: that of the feed-forward layers.
        dropout: dropout of attention weights.
        deviation: standard deviation of the initial latents, embeddings and trained positions and queries; that of
            linear layers follows from their widths.

    Raises OptionError for values out of range.
    """

    input: PerceiverInput
    output: OutputQueries | None = None
    latents: int = 256
    width: int = 1280
    layers: int = 26
    repeats: int = 1
    heads: int = 8
    cross_heads: int = 8
    query_key_width: int | None = None
    value_width: int | None = None
    cross_width: str = "inputs"
    query_residual: bool = True
    widening: int = 1
    cross_widening: int = 1
    activation: str = "gelu"
    dropout: float = 0.1
    deviation: float = 0.02

    def __post_init__(self) -> None:
        check_kind("input", self.input, PerceiverInput, do="for example TextInput()")
        if self.output is not None:
            check_kind("output", self.output, OutputQueries, do='for example ClassOutput(labels=("cat", "dog"))')
        for name in ("latents", "width", "heads", "cross_heads", "widening", "cross_widening"):
            check_size(name, getattr(self, name))
        for name in ("query_key_width", "value_width"):
            if getattr(self, name) is not None:
                check_size(name, getattr(self, name))
        for name in ("layers", "repeats"):
            check_count(name, getattr(self, name), most=MAX_LAYERS)
        check_weights(width=self.width, inner=self.width * max(self.widening, self.cross_widening))
        check_weights(latents=self.latents, width=self.width)
        check_choice("cross_width", self.cross_width, CROSS_WIDTHS)
        check_choice("activation of a Perceiver", self.activation, set(ACTIVATIONS.values()))
        check_flag("query_residual", self.query_residual)
        check_dropout(self.dropout)
        check_number("deviation", self.deviation, least=0.0)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels, in the order of the logits; empty for a model without labels."""
        return () if self.output is None else self.output.labels

    @property
    def vocabulary(self) -> int:
        """The number of different tokens of a text; 0 for other inputs."""
        return self.input.vocabulary if isinstance(self.input, TextInput) else 0

    @property
    def architecture(self) -> str | None:
        """The name of the class in ``transformers`` that has the same input and output; None if there is none."""
        try:
            self.to_hugging_face()
        except OptionError:
            return None
        return find_architecture(self.input, self.output)

    @classmethod
    def from_hugging_face(cls, config: ConfigFile) -> PerceiverConfig:
        """Read the config from a Hugging Face config.json. Raises CheckpointError for missing or unusable fields."""
        named = config.fields.get("architectures")
        name = named[0] if isinstance(named, list) and len(named) == 1 else None
        if not isinstance(name, str) or name not in ARCHITECTURES:
            raise CheckpointError(
                f"{config.path} does not say what this Perceiver reads and returns",
                expected='"architectures", a list of one of ' + ", ".join(ARCHITECTURES),
                got=json.dumps(named)[:80],
                do="check that the file belongs to this model",
            )
        try:
            source, output = ARCHITECTURES[name].read(config)
        except RegardError as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(
                f"{config.path} describes a model that cannot be built: {error.what}",
                expected=error.expected,
                got=error.got,
                do="check that the file belongs to this model",
            ) from error
        return config.build(
            cls,
            input=source,
            output=output,
            latents=config.size("num_latents", default=256),
            width=config.size("d_latents", default=1280),
            layers=config.size("num_self_attends_per_block", default=26),
            repeats=config.size("num_blocks", default=1),
            heads=config.size("num_self_attention_heads", default=8),
            cross_heads=config.size("num_cross_attention_heads", default=8),
            query_key_width=config.optional_integer("qk_channels"),
            value_width=config.optional_integer("v_channels"),
            cross_width=_CROSS_WIDTHS[
                config.choice("cross_attention_shape_for_attention", _CROSS_WIDTHS, default="kv")
            ],
            query_residual=config.flag("use_query_residual", default=True),
            widening=config.size("self_attention_widening_factor", default=1),
            cross_widening=config.size("cross_attention_widening_factor", default=1),
            activation=ACTIVATIONS[config.choice("hidden_act", ACTIVATIONS, default="gelu")],
            dropout=config.number("attention_probs_dropout_prob", default=0.1, below=1.0),
            deviation=config.number("initializer_range", default=0.02),
        )

    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``.

        Raises OptionError for an input and an output that no class of ``transformers`` has.
        """
        name = find_architecture(self.input, self.output)
        if name is not None:
            written = {
                "architectures": [name],
                "model_type": MODEL_TYPE,
                "num_latents": self.latents,
                "d_latents": self.width,
                "num_self_attends_per_block": self.layers,
                "num_blocks": self.repeats,
                "num_self_attention_heads": self.heads,
                "num_cross_attention_heads": self.cross_heads,
                "qk_channels": self.query_key_width,
                "v_channels": self.value_width,
                "cross_attention_shape_for_attention": next(
                    theirs for theirs, ours in _CROSS_WIDTHS.items() if ours == self.cross_width
                ),
                "use_query_residual": bool(self.query_residual),
                "self_attention_widening_factor": self.widening,
                "cross_attention_widening_factor": self.cross_widening,
                "hidden_act": activation_to_hugging_face(self.activation),
                "attention_probs_dropout_prob": self.dropout,
                "initializer_range": self.deviation,
                "layer_norm_eps": 1e-12,  # the default, which no layer reads
                **ARCHITECTURES[name].write(self.input, self.output),
            }
            if self.labels:
                written["id2label"] = {str(number): label for number, label in enumerate(self.labels)}
                written["label2id"] = {label: number for number, label in enumerate(self.labels)}
            if PerceiverConfig.from_hugging_face(ConfigFile(written, Path("config.json"))) == self:
                return written
        raise OptionError(
            "a config.json of type 'perceiver' cannot say this input and output",
            expected="those of a class of transformers, with the sizes that are constants in its code: "
            + ", ".join(ARCHITECTURES),
            got=f"{type(self.input).__name__} and {type(self.output).__name__}",
            do=f"write the fields of type {OWN_MODEL_TYPE!r}",
        )

    @classmethod
    def from_fields(cls, config: ConfigFile) -> PerceiverConfig:
        """Read the config from a config.json of type "regard-perceiver". Raises CheckpointError for unusable fields."""
        known = {one.name for one in fields(cls)}
        values = {name: value for name, value in config.fields.items() if name in known}
        values["input"] = _read_part(config, "input", values.get("input"), _INPUTS)
        output = values.get("output")
        values["output"] = None if output is None else _read_part(config, "output", output, _OUTPUTS)
        return config.build(cls, **values)

    def to_fields(self) -> dict[str, Any]:
        """The fields of a config.json of type "regard-perceiver"."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("input", "output")}
        output = None if self.output is None else _part_fields(self.output)
        return {"model_type": OWN_MODEL_TYPE, **own, "input": _part_fields(self.input), "output": output}


def _part_fields(part: Any) -> dict[str, Any]:
    """The fields of an input, an output or a part of one, as JSON."""
    if isinstance(part, JoinedInput | JoinedOutput):
        own = {one.name: getattr(part, one.name) for one in fields(part) if one.name != "parts"}
        return {"kind": part.kind, **own, "parts": {name: _part_fields(one) for name, one in part.parts.items()}}
    return {"kind": part.kind, **asdict(part)}


def _read_part(config: ConfigFile, field: str, value: Any, kinds: Mapping[str, type[Any]]) -> Any:
    """Build a part from its JSON. Raises CheckpointError for an unknown kind or field, or an unusable value."""
    kind = value.get("kind") if isinstance(value, dict) else None
    found = kinds.get(kind) if isinstance(kind, str) else None
    if found is None:
        raise CheckpointError(
            f"{config.path} has an unusable {field!r}",
            expected='an object with "kind", one of ' + ", ".join(kinds),
            got=json.dumps(value)[:80],
            do="check that the file belongs to this model",
        )
    given = {name: tuple(one) if isinstance(one, list) else one for name, one in value.items() if name != "kind"}
    unknown = sorted(set(given) - {one.name for one in fields(found)})
    if unknown:
        raise CheckpointError(
            f"{config.path} has unknown fields in {field!r}",
            expected=", ".join(one.name for one in fields(found)),
            got=", ".join(unknown)[:80],
            do="check that the file belongs to this model",
        )
    parts = given.get("parts")
    if isinstance(parts, dict):
        inner = _INPUTS if found is JoinedInput else _PARTS
        given["parts"] = {name: _read_part(config, name, one, inner) for name, one in parts.items()}
    try:
        return config.build(found, **given)
    except TypeError as error:  # a missing field, or a list in place of a number
        raise CheckpointError(
            f"{config.path} has an unusable {field!r}",
            expected=f"the fields of {found.__name__}",
            got=str(error),
            do="check that the file belongs to this model",
        ) from error
