"""Hyperparameters of a recipe, applied to the config of a new model.

The sizes of a model in messages: its layers, and the number of its weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from torch import nn

from regard.errors import OptionError, short_repr, unknown_name_error
from regard.language import count_noun
from regard.models.initial_weights import choose_deviation

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_INNER_MULTIPLE = 32
_OPTION_EXAMPLE = 'for example `hyperparameters={"mechanism_options.projected": 64}`'


def describe_layers(layers: int, width: int) -> str:
    """Describe a stack, for example "4 layers of 128"."""
    return f"{count_noun(layers, 'layer')} of {width}"


def describe_attention(config: Any) -> list[str]:
    """Describe the attention mechanism of a config, if it is another than the dot product: ["attention linear"]."""
    mechanism = getattr(config, "mechanism", "dot_product")
    return [] if mechanism == "dot_product" else [f"attention {mechanism}"]


def describe_weights(model: nn.Module) -> str:
    """Describe the number of weights, for example "12.3 million weights"."""
    return f"{format_millions(sum(weight.numel() for weight in model.parameters()))} million weights"


def format_millions(number: int) -> str:
    """Format a number in millions: with one decimal, or two digits below a million."""
    millions = number / 1e6
    return f"{millions:.1f}" if millions >= 1 else f"{millions:.2g}"


def gated_inner(width: int) -> int:
    """The hidden size of a gated feed-forward layer with as many weights as an ungated one of 4 * width.

    Shazeer 2020, "GLU variants improve transformer", section 3: two thirds of it; here the next multiple of 32.
    """
    return -(-8 * width // (3 * _INNER_MULTIPLE)) * _INNER_MULTIPLE


Config = TypeVar("Config", bound="DataclassInstance")
Determined: TypeAlias = dict[str, tuple[str, str]]
"""Fields of a config that hyperparameters cannot set: the reason of each, and what to do in place of setting it."""


def determined_by(reason: str, names: Sequence[str], *, do: str) -> Determined:
    """The fields ``names``, which ``reason`` determines, such as "the data"."""
    return {name: (f"{name} is determined by {reason}", do) for name in names}


def determined_by_tokenizer(*names: str) -> Determined:
    """The fields ``names``, which the tokenizer determines."""
    return determined_by("the tokenizer", names, do="set the size of the vocabulary with `vocabulary=...`")


def apply_hyperparameters(
    kind: type[Config],
    numbers: Mapping[str, Any],
    overrides: Mapping[str, Any],
    *,
    fixed: Determined,
) -> Config:
    """Build the config ``kind``, a dataclass, from ``numbers``, overridden by a recipe's hyperparameters.

    An override "name.option" sets an entry of a mapping; an integer sets all integers of a tuple, such as both sides of
    a patch. ``fixed`` are the fields that data or other arguments of the recipe determine. A config that has a width
    and a deviation of initial weights gets the deviation of its width (``models.initial_weights.choose_deviation``)
    unless it is given. Raises OptionError for an override of ``fixed`` fields, and for one that the config does not
    have.
    """
    fields = dataclasses.fields(kind)
    free = [field.name for field in fields if field.name not in fixed]
    types = get_type_hints(kind)
    own: dict[str, Any] = {}
    for name, value in overrides.items():
        name, dot, option = name.partition(".")
        if name in fixed:
            reason, do = fixed[name]
            raise OptionError(reason, expected=f"`hyperparameters` without {name}", got=short_repr(value), do=do)
        if name not in free:
            raise unknown_name_error(f"setting of a {kind.__name__.removesuffix('Config')}", name, free)
        if (get_origin(types[name]) is Mapping) != bool(dot and option):
            raise OptionError(
                f"wrong {name}",
                expected=f"{name}.OPTION=value" if not dot else f"{name}=value",
                got=f"{name}{dot}{option}={value!r}",
                do=f"leave out .{option}" if dot else _OPTION_EXAMPLE,
            )
        own[name] = {**own.get(name, {}), option: value} if dot else _read_value(name, value, types[name])
    return kind(**_with_deviation({**numbers, **own}, free))


def find_hyperparameter(config: Any, name: str) -> tuple[str, Any] | None:
    """The hyperparameter of a ``config`` that has this name in a recipe or a published file, and its value, if any."""
    name, dot, option = name.partition(".")
    for field in dataclasses.fields(config):
        if name in (field.name, field.metadata.get("stored")):
            value = getattr(config, field.name)
            has_option = dot and isinstance(value, Mapping)
            return (f"{field.name}.{option}", value.get(option)) if has_option else (field.name, value)
    return None


def _read_value(name: str, value: Any, kind: Any) -> Any:
    """A value of the type ``kind``. Raises OptionError for a value of another type."""
    members = get_args(kind)
    if get_origin(kind) is tuple:
        return _read_list(name, value) if ... in members else _read_tuple(name, value, len(members))
    valid = members or (kind,)
    if type(value) not in valid and not (float in valid and type(value) is int):
        words = " or ".join("None" if kind is NoneType else kind.__name__ for kind in valid)
        raise OptionError(
            f"wrong {name}", expected=words, got=short_repr(value), do=f"give {words} as the value of {name}"
        )
    return float(value) if kind is float else value


def _with_deviation(numbers: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    width = numbers.get("width")
    if "deviation" not in fields or type(width) is not int or width < 1:  # the config says what is wrong
        return numbers
    return {"deviation": choose_deviation(width), **numbers}


def _read_list(name: str, value: Any) -> tuple[int, ...]:
    """A tuple of integers, of a list of any length. Raises OptionError for anything else."""
    if not isinstance(value, list | tuple) or any(type(number) is not int for number in value):
        raise OptionError(
            f"wrong {name}", expected="a list of integers", got=short_repr(value), do=f"for example {name}=[2, 2]"
        )
    return tuple(value)


def _read_tuple(name: str, value: Any, count: int) -> tuple[int, ...]:
    """A tuple of ``count`` integers, of a list or of one integer. Raises OptionError for anything else."""
    listed = [value] * count if type(value) is int else value
    if (
        not isinstance(listed, list | tuple)
        or len(listed) != count
        or any(type(number) is not int for number in listed)
    ):
        raise OptionError(
            f"wrong {name}",
            expected=f"an integer, or a list of {count}",
            got=short_repr(value),
            do=f"for example {name}={[8] * count}",
        )
    return tuple(listed)
