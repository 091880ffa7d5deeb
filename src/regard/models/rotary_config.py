"""Rotary positions as hyperparameters of a model, and as fields of a Hugging Face config.json.

"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, ..}       until 2025
"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, ..}    since then
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, final

from regard.arguments import explain_arguments
from regard.errors import CheckpointError, short_repr
from regard.fields import check_fields
from regard.models.config_file import ConfigFile
from regard.models.hyperparameters import model_field, read_published, write_published
from regard.positions import DynamicScaling, LinearScaling, Llama3Scaling, LongRopeScaling, Rotary, Scaling, YarnScaling


@final
@explain_arguments
@dataclass(frozen=True)
class RotaryConfig:
    """The hyperparameters of rotary positions, which ``positions.Rotary`` takes."""

    base: float = model_field(10000.0, "the base of the frequencies", minimum=1.0)
    rotated: int | None = model_field(
        None, "number of components of a head that are rotated; None is the whole head", minimum=1
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
        kind = rope.choice("rope_type", ("default", *_SCALINGS), default="default")
        part = rope.number("partial_rotary_factor", default=1.0) if fields["partial_rotary_factor"] is not None else 1.0
        rotated = int(head_dim * part)
        if rotated != head_dim and not is_partial:
            raise _partial_error(config, part, rotated, head_dim)
        found = config.build(
            cls,
            base=rope.number("rope_theta", default=base),
            rotated=None if rotated == head_dim else rotated,
            scaling=_read_scaling(kind, rope),
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

    ``transformers`` would take "rope_scaling" alone, and with it the default base if it names none: the intended base
    is unknown.
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


def _read_scaling(name: str, rope: ConfigFile) -> Scaling | None:
    """Read the scaling whose "rope_type" is ``name``."""
    if name not in _SCALINGS:
        return None
    kind, factor = _SCALINGS[name], _read_factor(rope)
    values: dict[str, Any] = {"factor": max(factor, 1.0) if kind is LongRopeScaling else factor}
    if kind is DynamicScaling:
        values["trained_length"] = rope.size("max_position_embeddings")
    if kind is YarnScaling and rope.fields.get("attention_factor") is None:
        own, of_all = (_optional_number(rope, name) for name in ("mscale", "mscale_all_dim"))
        if own and of_all:
            values["magnitude_factor"] = (0.1 * own * math.log(factor) + 1.0) / (0.1 * of_all * math.log(factor) + 1.0)
    return read_published(kind, rope, **values)


def _read_factor(rope: ConfigFile) -> float:
    """Read the factor; without one, it is the ratio of the new length and the trained one."""
    factor = _optional_number(rope, "factor")
    if factor is not None:
        return factor
    return rope.size("max_position_embeddings") / rope.size("original_max_position_embeddings")


def _optional_number(rope: ConfigFile, field: str) -> float | None:
    return None if rope.fields.get(field) is None else rope.number(field, default=0.0)


_SCALINGS: Mapping[str, type[Scaling]] = {
    "linear": LinearScaling,
    "dynamic": DynamicScaling,
    "yarn": YarnScaling,
    "llama3": Llama3Scaling,
    "longrope": LongRopeScaling,
}
"""The scalings, by the field "rope_type"."""


def _scaling_fields(scaling: Scaling | None) -> dict[str, Any]:
    """The fields of a scaling in a config.json. Raises CheckpointError for a class of scaling that has no fields."""
    if scaling is None:
        return {}
    name = next((name for name, kind in _SCALINGS.items() if type(scaling) is kind), None)
    if name is None:
        raise CheckpointError(
            f"{type(scaling).__name__} has no fields in a config.json",
            expected="None, " + ", ".join(sorted(["default", *_SCALINGS])),
            got=repr(scaling),
            do="use one of the scalings in regard.positions",
        )
    written = {field: value for field, value in write_published(scaling).items() if value is not None}
    return {"rope_type": name, **written}
