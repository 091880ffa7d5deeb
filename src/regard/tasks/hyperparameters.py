"""Hyperparameters of a recipe, applied to the config of a new model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from regard.errors import OptionError, unknown_name_error

Config = TypeVar("Config")


def apply_hyperparameters(
    kind: type[Config], numbers: Mapping[str, Any], overrides: Mapping[str, Any], *, fixed: Sequence[str]
) -> Config:
    """Build the config ``kind``, a dataclass, from ``numbers``, overridden by a recipe's hyperparameters.

    An override "name.option" sets an entry of a mapping. ``fixed`` are the fields that the tokenizer determines. Raises
    OptionError for an override of them, and for one that the config does not have.
    """
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    free = [one.name for one in fields if one.name not in fixed]
    types = get_type_hints(kind)
    own: dict[str, Any] = {}
    for name, value in overrides.items():
        name, dot, option = name.partition(".")
        if name in fixed:
            raise OptionError(
                f"{name} is determined by the tokenizer",
                expected=f"hyperparameters (--set) without {name}",
                got=repr(value),
                do="set the size of the vocabulary with vocabulary=... (--vocabulary)",
            )
        if name not in free:
            raise unknown_name_error(f"setting of a {kind.__name__.removesuffix('Config')}", name, free)
        if (get_origin(types[name]) is Mapping) != bool(dot and option):
            raise OptionError(
                f"wrong {name}",
                expected=f"{name}.OPTION=value" if not dot else f"{name}=value",
                got=f"{name}{dot}{option}={value!r}",
                do="for example mechanism_options.projected=64",
            )
        if dot:
            own[name] = {**own.get(name, {}), option: value}
            continue
        wanted = get_args(types[name]) or (types[name],)
        if type(value) not in wanted and not (float in wanted and type(value) is int):
            words = " or ".join("None" if one is NoneType else one.__name__ for one in wanted)
            raise OptionError(
                f"wrong {name}", expected=words, got=repr(value), do=f"give {words} as the value of {name}"
            )
        own[name] = float(value) if types[name] is float else value
    return kind(**{**numbers, **own})
