"""Fields of a recipe: checked, as JSON values for ``run.json``, and refused where they cannot have an effect."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from regard.errors import OptionError, check_count, check_kind


class Recipe(Protocol):
    """A dataclass of the data and the model of a task, and the model that training starts from, if any."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def start(self) -> str | None:
        """The folder of a trained model, or its name on the Hub."""
        ...


def check_paths(recipe: object, *, example: str) -> None:
    """Raise OptionError unless ``data`` and ``validation`` are tuples of paths, of files such as ``example``."""
    for name in ("data", "validation"):
        paths, do = getattr(recipe, name), f'for example {name}=(Path("{example}"),)'
        check_kind(name, paths, tuple, do=do)
        for path in paths:
            check_kind(name, path, Path, do=do)


def check_optional(recipe: object, *, texts: Collection[str], counts: Collection[str]) -> None:
    """Raise OptionError unless the fields ``texts`` are strings and ``counts`` numbers from 1, or None."""
    for name in texts:
        if getattr(recipe, name) is not None:
            check_kind(name, getattr(recipe, name), str, do=f"leave {name} out for the default")
    for name in counts:
        if getattr(recipe, name) is not None:
            check_count(name, getattr(recipe, name))


def to_json_fields(recipe: Recipe, *, left_out: Collection[str]) -> dict[str, Any]:
    """Convert the fields of a recipe to JSON values by name, except those ``left_out``; of ``start`` the last part."""
    kept = {name: to_json_value(value) for name, value in asdict(recipe).items() if name not in left_out}
    return kept | {"start": None if recipe.start is None else Path(recipe.start).name}


def default_fields(kind: type[Any]) -> dict[str, Any]:
    """The defaults of a dataclass' fields as JSON values by name, for ``Task.recipe_defaults``.

    A default that is a dataclass itself becomes an object of its fields.
    """
    defaults = {}
    for one in fields(kind):
        default = one.default if one.default_factory is MISSING else one.default_factory()
        if default is not MISSING:
            is_nested = is_dataclass(default) and not isinstance(default, type)
            defaults[one.name] = to_json_value(asdict(default) if is_nested else default)
    return defaults


def check_effect_on_trained_model(start: str, given: Mapping[str, bool], *, parts: str) -> None:
    """Raise OptionError if a field was given that a trained model decides.

    ``start`` names the model that training starts from, ``given`` says which fields were given, by the words of the
    message, and ``parts`` is what the fields would change, such as "the architecture or the tokenizer".
    """
    names = ", ".join(name for name, is_given in given.items() if is_given)
    if names:
        raise OptionError(
            f"fine-tuning cannot change {parts} of {start}",
            expected="settings that leave them as they are",
            got="settings that would change them",
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
