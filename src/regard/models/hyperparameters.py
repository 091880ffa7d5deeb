"""Hyperparameters of models: fields of a config, each declared once, and their form in published config.json files.

    width: int = size_field(768, "size of hidden states", "hidden_size", required=True)

The third argument is the name in the files. ``regard.fields`` checks and documents the fields declared here; a config
itself has only what does not follow from its fields, such as relations between them and derived values.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, TypeVar, Unpack, get_args, get_origin

from regard.fields import SIZE, DeclaredField, Facts, declared_fields, option_field
from regard.models.config_file import MAX_LAYERS, ConfigFile

Config = TypeVar("Config")

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu_squared",
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "quick_gelu",
}
"""Hugging Face's names of activations, and ours. Of several names for one activation, the first is written."""


def model_field(default: Any, text: str, stored: str | None = None, /, **facts: Unpack[Facts]) -> Any:
    """A field of a config with a default, its help and its name in published files."""
    return option_field(default, text, **(facts if stored is None else facts | Facts(stored=stored)))


def size_field(default: Any, text: str, stored: str | None = None, /, **facts: Unpack[Facts]) -> Any:
    """A field that is a size, 1 to ``LARGEST_SIZE``, or a tuple of them."""
    return model_field(default, text, stored, **SIZE | facts)


def depth_field(default: Any, text: str, stored: str | None = None, /, **facts: Unpack[Facts]) -> Any:
    """A field that is a number of layers, 1 to ``MAX_LAYERS``."""
    return model_field(default, text, stored, **Facts(minimum=1, maximum=MAX_LAYERS) | facts)


def probability_field(default: Any, text: str, stored: str | None = None, /, **facts: Unpack[Facts]) -> Any:
    """A field that is a probability below 1, or a tuple of them."""
    return model_field(default, text, stored, **Facts(is_probability=True) | facts)


def model_type_field(default: str, valid: Collection[str]) -> Any:
    """A field that is the model type in config.json, one of ``valid``, which must be able to say all other fields."""
    text = f"the type in config.json, one of {', '.join(valid)}, which must be able to say all other fields"
    return model_field(default, text, "model_type", choices=valid, read=lambda config, name: config.model_type)


def read_published(kind: type[Config], config: ConfigFile, **values: Any) -> Config:
    """Build the config ``kind`` from a published config.json; ``values`` are of fields that do not follow from one.

    Raises CheckpointError for missing or unusable fields, and for values that the class refuses.
    """
    declared = [field for field in declared_fields(kind) if "stored" in field.facts]
    stored = {field.name: str(field.facts["stored"]) for field in declared}
    read = {field.name: _read_field(field, config, stored) for field in declared if field.name not in values}
    return config.build(kind, **read, **values)


def write_published(value: Any, *, excluded: Collection[str] = ()) -> dict[str, Any]:
    """The fields of a config, but for those in ``excluded``, as a published config.json has them."""
    return {
        declared.facts["stored"]: _to_json(declared, value)
        for declared in declared_fields(type(value))
        if "stored" in declared.facts and declared.name not in excluded
    }


def name_in_file(names: Mapping[str, str], value: str) -> str:
    """The name of a value in a file, by a table of the names there and ours; of several the first."""
    return next(name for name, ours in names.items() if ours == value)


def _read_field(field: DeclaredField, config: ConfigFile, stored: Mapping[str, str]) -> object:
    """Read a field; ``stored`` are the names of all fields in published files."""
    name, facts = stored[field.name], field.facts
    default: Any = None if facts.get("required") else facts.get("absent", field.default)
    if "read" in facts:
        return facts["read"](config, name)
    if field.is_optional and config.fields.get(name, default) is None:
        return None
    if "stored_names" in facts:
        names = facts["stored_names"]
        return names[config.choice(name, names, default=name_in_file(names, default))]
    if get_origin(field.kind) is Mapping:
        return config.options(name)
    if get_origin(field.kind) is tuple:
        if ... not in get_args(field.kind):
            return config.size_pair(name, default=default[0])
        if get_args(field.kind)[0] is str:
            return config.names(name, default=default)
        return (config.sizes if facts.get("minimum") else config.listed)(name, default=default)
    if field.kind is bool:
        return config.flag(name, default=default)
    if field.kind is float:
        return config.number(name, default=default, below=1.0 if facts.get("is_probability") else math.inf)
    if "below" in facts:
        return config.index(name, default=default, below=stored[facts["below"]])
    if field.kind is str:
        return config.choice(name, facts["choices"], default=default)
    divides = stored.get(facts.get("divides", "")) if facts.get("required") else None  # else it may be absent, too
    return config.size(name, default=default, divides=divides)


def _to_json(field: DeclaredField, owner: Any) -> object:
    value, facts = getattr(owner, field.name), field.facts
    if "write" in facts:
        return facts["write"](value)
    if "stored_names" in facts:
        return name_in_file(facts["stored_names"], value)
    if isinstance(value, tuple):
        is_square = ... not in get_args(field.kind) and value[0] == value[1]  # one number is what most readers expect
        return value[0] if is_square else list(value)
    return value
