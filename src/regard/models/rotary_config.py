"""Rotary positions as hyperparameters of a model, and as fields of a Hugging Face config.json.

"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, ..}       until 2025
"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, ..}    since then
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, final

from regard.arguments import explain_arguments
from regard.errors import CheckpointError, short_repr
from regard.fields import check_fields
from regard.models.config_file import ConfigFile
from regard.models.hyperparameters import model_field
from regard.positions import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rotary,
    Scaling,
    YarnScaling,
)


@final
@explain_arguments
@dataclass(frozen=True)
class RotaryConfig:
    """The hyperparameters of rotary positions, those of ``positions.Rotary``."""

    base: float = model_field(10000.0, "the base of the frequencies", least=1.0)
    rotated: int | None = model_field(
        None, "number of components of a head that are rotated; None is the whole head", least=1
    )
    scaling: Scaling | None = model_field(
        None, "the scaling for longer texts", example="for example positions.LinearScaling(2.0)"
    )

    def __post_init__(self) -> None:
        check_fields(self)

    def build(self, head_dim: int) -> Rotary:
        """Build the positions for heads of ``head_dim``."""
        return Rotary(head_dim, base=self.base, rotated=self.rotated, scaling=self.scaling)

    @classmethod
    def from_hugging_face(
        cls,
        config: ConfigFile,
        *,
        head_dim: int,
        base: float = 10000.0,
        base_field: str | None = "rope_theta",
        section: str | None = None,
        default: Mapping[str, Any] = MappingProxyType({}),
        is_partial: bool = True,
    ) -> RotaryConfig:
        """Read the fields of a config.json for heads of ``head_dim``; ``base`` is the default of the model's type.

        ``base_field`` is the field of older files for the base; None is none. ``section`` names the part of
        "rope_parameters" for one type of layer, if the model has several. ``default`` are the fields of a file without
        any. ``is_partial`` says whether models of the type may rotate a part of each head. Raises CheckpointError for
        unusable fields, and for both forms at once that say different things.
        """
        parameters, scaling = (_non_empty(config, name) for name in ("rope_parameters", "rope_scaling"))
        if section is not None and parameters is not None:
            parameters = parameters.section(section) or ConfigFile({}, config.path)
        fields = {name: config.fields.get(name) for name in ("max_position_embeddings", "partial_rotary_factor")}
        fields["rope_theta"] = base if base_field is None else config.fields.get(base_field, base)
        if parameters is not None and scaling is not None:
            _check_same_rope(config, fields | dict(parameters.fields), scaling.fields)
        rope = parameters or scaling or ConfigFile(dict(default), config.path)
        fields |= {name: value for name, value in rope.fields.items() if value is not None}
        fields.setdefault("original_max_position_embeddings", config.fields.get("max_position_embeddings"))
        if config.fields.get("original_max_position_embeddings") is not None:
            fields["original_max_position_embeddings"] = config.fields["original_max_position_embeddings"]
        rope = ConfigFile(fields | {"rope_type": _rope_type(config, fields)}, config.path)
        kind = rope.choice("rope_type", _READERS, default="default")
        part = rope.number("partial_rotary_factor", default=1.0) if fields["partial_rotary_factor"] is not None else 1.0
        rotated = int(head_dim * part)
        if rotated != head_dim and not is_partial:
            raise _partial_error(config, part, rotated, head_dim)
        found = config.build(
            cls,
            base=rope.number("rope_theta", default=base),
            rotated=None if rotated == head_dim else rotated,
            scaling=_READERS[kind](rope, config),
        )
        config.build(Rotary, head_dim=head_dim, base=found.base, rotated=found.rotated, scaling=found.scaling)
        return found

    def to_hugging_face(self, head_dim: int) -> dict[str, Any]:
        """The field "rope_parameters" of a config.json, for heads of ``head_dim``."""
        fields: dict[str, Any] = {"rope_type": "default", "rope_theta": self.base}
        if self.rotated is not None:
            part = self.rotated / head_dim
            fields["partial_rotary_factor"] = (
                part if int(head_dim * part) == self.rotated else math.nextafter(part, 1.0)
            )
        return fields | _scaling_fields(self.scaling)


def _non_empty(config: ConfigFile, field: str) -> ConfigFile | None:
    section = config.section(field)
    return section if section is not None and section.fields else None


def _partial_error(config: ConfigFile, part: float, rotated: int, head_dim: int) -> CheckpointError:
    """The error for a partial rotation in a type that has none: what its weights were trained for is unknown."""
    return CheckpointError(
        f'{config.path} has a "partial_rotary_factor", which models of type {config.model_type!r} do not have',
        expected="1.0, or no such field; phi3 is a type that has it",
        got=f"{part:g}: transformers does not apply it to this type and rotates all {head_dim} components of a head, "
        f"other programs rotate {rotated} of them",
        do="remove the field if the weights were trained with transformers; else load them with the program that "
        "trained them",
    )


def _check_same_rope(config: ConfigFile, parameters: Mapping[str, Any], scaling: Mapping[str, Any]) -> None:
    """Raise CheckpointError unless "rope_scaling" repeats what "rope_parameters" says.

    ``transformers`` would take "rope_scaling" alone, and with it the default base if it names none: what is meant is
    unknown.
    """
    plain = dict(parameters) | {"rope_type": _rope_type(config, parameters)}
    other = {name: value for name, value in scaling.items() if name != "type"}
    other["rope_type"] = _rope_type(config, scaling)
    different = [name for name, value in other.items() if value is not None and plain.get(name) != value]
    if different:
        raise CheckpointError(
            f"{config.path} says in two fields how positions are rotated",
            expected="rope_parameters alone, or a rope_scaling that agrees with it",
            got=f"another {different[0]!r} in rope_scaling: {short_repr(other[different[0]])}",
            do='move the fields of rope_scaling into rope_parameters, beside "rope_theta", and remove rope_scaling',
        )


def _rope_type(config: ConfigFile, fields: Mapping[str, Any]) -> object:
    """The name of the scaling, which older files have as "type"; older files of Phi-3 have other names for LongRoPE."""
    name = fields.get("rope_type", fields.get("type", "default"))
    return "longrope" if name == "su" or (name == "yarn" and config.model_type == "phi3") else name


def _read_dynamic(rope: ConfigFile, config: ConfigFile) -> DynamicScaling:
    return config.build(DynamicScaling, factor=_read_factor(rope), trained_length=rope.size("max_position_embeddings"))


def _read_yarn(rope: ConfigFile, config: ConfigFile) -> YarnScaling:
    factor = _read_factor(rope)
    magnitude = _optional_number(rope, "attention_factor")
    own, of_all = (_optional_number(rope, name) for name in ("mscale", "mscale_all_dim"))
    if magnitude is None and own and of_all:
        magnitude = (0.1 * own * math.log(factor) + 1.0) / (0.1 * of_all * math.log(factor) + 1.0)
    return config.build(
        YarnScaling,
        factor=factor,
        trained_length=rope.size("original_max_position_embeddings"),
        fast=_optional_number(rope, "beta_fast") or 32.0,
        slow=_optional_number(rope, "beta_slow") or 1.0,
        magnitude_factor=magnitude,
        whole_pairs=rope.flag("truncate", default=True),
    )


def _read_llama3(rope: ConfigFile, config: ConfigFile) -> Llama3Scaling:
    return config.build(
        Llama3Scaling,
        factor=_read_factor(rope),
        trained_length=rope.size("original_max_position_embeddings"),
        low=rope.number("low_freq_factor", default=1.0),
        high=rope.number("high_freq_factor", default=4.0),
    )


def _read_longrope(rope: ConfigFile, config: ConfigFile) -> LongRopeScaling:
    return config.build(
        LongRopeScaling,
        short_factors=rope.numbers("short_factor"),
        long_factors=rope.numbers("long_factor"),
        factor=max(_read_factor(rope), 1.0),
        trained_length=rope.size("original_max_position_embeddings"),
        magnitude_factor=_optional_number(rope, "attention_factor"),
    )


def _read_factor(rope: ConfigFile) -> float:
    """Read the factor; without one, it is the ratio of the new length and the trained one."""
    factor = _optional_number(rope, "factor")
    if factor is not None:
        return factor
    return rope.size("max_position_embeddings") / rope.size("original_max_position_embeddings")


def _optional_number(rope: ConfigFile, field: str) -> float | None:
    return None if rope.fields.get(field) is None else rope.number(field, default=0.0)


_READERS: Mapping[str, Callable[[ConfigFile, ConfigFile], Scaling | None]] = {
    "default": lambda rope, config: None,
    "linear": lambda rope, config: config.build(LinearScaling, factor=_read_factor(rope)),
    "dynamic": _read_dynamic,
    "yarn": _read_yarn,
    "llama3": _read_llama3,
    "longrope": _read_longrope,
}
"""The readers of scalings, by the field "rope_type"."""


def _scaling_fields(scaling: Scaling | None) -> dict[str, Any]:
    """The fields of a scaling in a config.json. Raises CheckpointError for a class of scaling that has no fields."""
    if scaling is None:
        return {}
    if isinstance(scaling, LinearScaling):
        return {"rope_type": "linear", "factor": scaling.factor}
    if isinstance(scaling, DynamicScaling):
        return {"rope_type": "dynamic", "factor": scaling.factor}
    if isinstance(scaling, YarnScaling):
        fields = {
            "rope_type": "yarn",
            "factor": scaling.factor,
            "original_max_position_embeddings": scaling.trained_length,
            "beta_fast": scaling.fast,
            "beta_slow": scaling.slow,
            "truncate": scaling.whole_pairs,
        }
        return fields | _magnitude_field(scaling.magnitude_factor)
    if isinstance(scaling, Llama3Scaling):
        return {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "original_max_position_embeddings": scaling.trained_length,
            "low_freq_factor": scaling.low,
            "high_freq_factor": scaling.high,
        }
    if isinstance(scaling, LongRopeScaling):
        fields = {
            "rope_type": "longrope",
            "factor": scaling.factor,
            "original_max_position_embeddings": scaling.trained_length,
            "short_factor": list(scaling.short_factors),
            "long_factor": list(scaling.long_factors),
        }
        return fields | _magnitude_field(scaling.magnitude_factor)
    raise CheckpointError(
        f"{type(scaling).__name__} has no fields in a config.json",
        expected="None, " + ", ".join(sorted(_READERS)),
        got=repr(scaling),
        do="use one of the scalings in regard.positions",
    )


def _magnitude_field(magnitude: float | None) -> dict[str, Any]:
    return {} if magnitude is None else {"attention_factor": magnitude}
