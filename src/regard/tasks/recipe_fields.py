"""Fields of a recipe: as JSON values for ``run.json``, and refused where they cannot have an effect."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import OptionError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def to_json_fields(recipe: DataclassInstance, *, left_out: Collection[str]) -> dict[str, Any]:
    """Convert the fields of a recipe to JSON values by name, except those ``left_out``."""
    return {name: to_json_value(value) for name, value in asdict(recipe).items() if name not in left_out}


def check_effect_on_trained_model(start: str, given: Mapping[str, bool], *, parts: str) -> None:
    """Raise OptionError if a field was given that a trained model decides.

    ``start`` names the model that training starts from, ``given`` says which fields were given, by the words of the
    message, and ``parts`` is what the fields would change, such as "the architecture or the tokenizer".
    """
    names = ", ".join(name for name, is_given in given.items() if is_given)
    if names:
        raise OptionError(
            f"fine-tuning cannot change {parts} of {start}",
            expected="a recipe that leaves them as they are",
            got=names,
            do=f"leave out {names}",
        )


def to_json_value(value: Any) -> Any:
    """Convert to JSON; a path becomes its file name, since the file may be elsewhere when the run is resumed.

    Any other object, such as one in the config of a model, becomes its ``repr``.
    """
    if isinstance(value, Path):
        return value.name
    if isinstance(value, tuple | list):
        return [to_json_value(one) for one in value]
    if isinstance(value, dict):
        return {name: to_json_value(one) for name, one in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)
