"""The hyperparameters of a Perceiver, and its two forms of config.json.

model_type "perceiver"           the layout of ``transformers``, for models with the inputs and outputs of the published
                                 ones, whose sizes are partly constants in its code; "architectures" names them
model_type "regard-perceiver"    the fields of ``PerceiverConfig``, for any others
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, final

from regard.arguments import explain_arguments
from regard.errors import CheckpointError, OptionError, check_weights
from regard.fields import check_fields, declare
from regard.models.config_file import ConfigFile
from regard.models.hyperparameters import (
    ACTIVATIONS,
    depth_field,
    model_field,
    probability_field,
    read_published,
    size_field,
    write_published,
)
from regard.models.perceiver_architectures import ARCHITECTURES, find_architecture
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
    part.kind: part
    for part in (
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
    part.kind: part for part in (ClassOutput, TextOutput, PositionOutput, FlowOutput, JoinedOutput)
}
_PARTS: Mapping[str, type[PartOutput]] = {part.kind: part for part in (AudioOutput, VideoOutput, LabelOutput)}


@final
@explain_arguments
@dataclass(frozen=True)
class PerceiverConfig:
    """The hyperparameters of a Perceiver. Default sizes follow the published model of bytes.

    Raises OptionError for values out of range.
    """

    input: PerceiverInput = field(
        metadata=declare(
            "what is read, such as ``PixelInput(size=(28, 28), channels=1)``", example="for example TextInput()"
        )
    )
    output: OutputQueries | None = model_field(
        None,
        'what is returned, such as ``ClassOutput(labels=("cat", "dog"))``; None is the latents alone',
        example='for example ClassOutput(labels=("cat", "dog"))',
    )
    latents: int = size_field(256, "number of latents", "num_latents")
    width: int = size_field(1280, "size of a latent", "d_latents")
    layers: int = depth_field(26, "number of self-attention blocks", "num_self_attends_per_block")
    repeats: int = depth_field(1, "how often these blocks are applied, with the same weights", "num_blocks")
    heads: int = size_field(8, "number of heads of self-attention", "num_self_attention_heads")
    cross_heads: int = size_field(
        8, "number of heads of the cross-attention from latents to the input", "num_cross_attention_heads"
    )
    query_key_width: int | None = size_field(
        None,
        "size of all heads of queries and keys; None is the width of latents, and in cross-attention the width of the "
        "input, or as ``cross_width`` says",
        "qk_channels",
    )
    value_width: int | None = size_field(None, "size of all heads of values; None is ``query_key_width``", "v_channels")
    cross_width: str = model_field(
        "inputs",
        'what ``query_key_width`` of cross-attention is by default: "inputs" or "queries"',
        "cross_attention_shape_for_attention",
        stored_names={"kv": "inputs", "q": "queries"},
    )
    query_residual: bool = model_field(
        True,
        "whether the cross-attention from latents to the input has a residual connection",
        "use_query_residual",
        write=bool,
    )
    widening: int = size_field(
        1,
        "hidden size of the feed-forward layers of self-attention blocks, in widths",
        "self_attention_widening_factor",
    )
    cross_widening: int = size_field(1, "the same for the block of cross-attention", "cross_attention_widening_factor")
    activation: str = model_field(
        "gelu", "activation of the feed-forward layers", "hidden_act", stored_names=ACTIVATIONS
    )
    dropout: float = probability_field(0.1, "dropout of attention weights", "attention_probs_dropout_prob")
    deviation: float = model_field(
        0.02,
        "standard deviation of the initial latents, embeddings and trained positions and queries; for linear layers it "
        "follows from their widths",
        "initializer_range",
        minimum=0.0,
    )

    model_name = "Perceiver"

    def __post_init__(self) -> None:
        check_fields(self)
        check_weights(width=self.width, inner=self.width * max(self.widening, self.cross_widening))
        check_weights(latents=self.latents, width=self.width)

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
            raise config.field_error("architectures", "a list of one of " + ", ".join(ARCHITECTURES))
        source, output = config.build(ARCHITECTURES[name].read, config=config)
        return read_published(cls, config, input=source, output=output)

    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``.

        Raises OptionError for an input and an output that no class of ``transformers`` has.
        """
        name = find_architecture(self.input, self.output)
        if name is not None:
            written = {
                "architectures": [name],
                "model_type": MODEL_TYPE,
                **write_published(self),
                "layer_norm_eps": 1e-12,  # the default, which no layer reads
                **ARCHITECTURES[name].write(self.input, self.output),
            }
            if self.labels:
                written["id2label"] = {str(number): label for number, label in enumerate(self.labels)}
                written["label2id"] = {label: number for number, label in enumerate(self.labels)}
            if PerceiverConfig.from_hugging_face(ConfigFile(written, Path("config.json"))) == self:
                return written
        raise OptionError(
            "a config.json of type 'perceiver' cannot store this input and output",
            expected="those of a class of transformers, with the sizes that are constants in its code: "
            + ", ".join(ARCHITECTURES),
            got=f"{type(self.input).__name__} and {type(self.output).__name__}",
            do=f"write the fields of type {OWN_MODEL_TYPE!r}",
        )

    @classmethod
    def from_fields(cls, config: ConfigFile) -> PerceiverConfig:
        """Read the config from a config.json of type "regard-perceiver". Raises CheckpointError for unusable fields."""
        known = {field.name for field in fields(cls)}
        values = {name: value for name, value in config.fields.items() if name in known}
        values["input"] = _read_part(config, "input", values.get("input"), _INPUTS)
        output = values.get("output")
        values["output"] = None if output is None else _read_part(config, "output", output, _OUTPUTS)
        return config.build(cls, **values)

    def to_fields(self) -> dict[str, Any]:
        """The fields of a config.json of type "regard-perceiver"."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("input", "output")}
        output = None if self.output is None else _part_fields(self.output)
        return {"model_type": OWN_MODEL_TYPE, **own, "input": _part_fields(self.input), "output": output}


def _part_fields(part: Any) -> dict[str, Any]:
    """The fields of an input, an output or a part of one, as JSON."""
    if isinstance(part, JoinedInput | JoinedOutput):
        own = {field.name: getattr(part, field.name) for field in fields(part) if field.name != "parts"}
        return {"kind": part.kind, **own, "parts": {name: _part_fields(inner) for name, inner in part.parts.items()}}
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
    given = {
        name: tuple(member) if isinstance(member, list) else member for name, member in value.items() if name != "kind"
    }
    unknown = sorted(set(given) - {field.name for field in fields(found)})
    if unknown:
        raise CheckpointError(
            f"{config.path} has unknown fields in {field!r}",
            expected=", ".join(field.name for field in fields(found)),
            got=", ".join(unknown)[:80],
            do="check that the file belongs to this model",
        )
    parts = given.get("parts")
    if isinstance(parts, dict):
        inner = _INPUTS if found is JoinedInput else _PARTS
        given["parts"] = {name: _read_part(config, name, part, inner) for name, part in parts.items()}
    try:
        return config.build(found, **given)
    except TypeError as error:  # a missing field, or a list in place of a number
        raise CheckpointError(
            f"{config.path} has an unusable {field!r}",
            expected=f"the fields of {found.__name__}",
            got=str(error),
            do="check that the file belongs to this model",
        ) from error
