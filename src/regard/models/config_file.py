"""Reading of a model folder's ``config.json``, with a check and an error message for every field; JSON texts.

The sizes decide how much memory a model takes, so each is bounded before anything is built.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, cast, final, get_origin, get_type_hints

from regard.errors import LARGEST_SIZE, CheckpointError, RegardError
from regard.language import abbreviate_names

MAX_LAYERS = 4096
"""Maximum layers of a stack; more would take hours to build."""
_MAX_FILE_BYTES = 2**24
_OPTIONS = "an object of numbers, strings, true, false and null, and of lists of these"
_JSON_SCALARS = (str, int, float, bool, type(None))

Config = TypeVar("Config")


@final
class ConfigFile:
    """The fields of a config.json. Every method raises CheckpointError for a field that cannot be used."""

    def __init__(self, fields: Mapping[str, Any], path: Path) -> None:
        self.fields, self.path = fields, path

    @classmethod
    def read(cls, folder: Path) -> ConfigFile:
        """Read config.json in ``folder``."""
        path = folder / "config.json"
        return cls(read_json_object(path), path)

    @property
    def model_type(self) -> str:
        """The architecture, the field "model_type"."""
        if not isinstance(self.fields.get("model_type"), str):
            raise CheckpointError(
                f"{self.path} does not name an architecture",
                expected='a field "model_type"',
                got="fields " + abbreviate_names(list(self.fields), 12),
                do='for a BERT add "model_type": "bert"',
            )
        return str(self.fields["model_type"])

    def optional_integer(self, field: str) -> int | None:
        """Read an integer of 0 or more; None if the field is absent or null."""
        return None if self.fields.get(field) is None else self._read_integer(field, lowest=0)

    def size(self, field: str, *, default: int | None = None, divides: str | None = None) -> int:
        """Read an integer from 1 to ``LARGEST_SIZE``; ``divides`` names a field that it must divide."""
        size = default if field not in self.fields else None
        size = self._read_integer(field, lowest=1) if size is None else size
        if divides is not None and self.size(divides) % size:
            raise self.field_error(field, f"a divisor of {divides}={self.size(divides)}")
        return size

    def indices(self, field: str, *, default: tuple[int, ...], below: str) -> tuple[int, ...]:
        """Read an integer or a list of them, each from 0 to one less than the field ``below``; null is none."""
        value = self.fields.get(field, default)
        listed = [value] if isinstance(value, int) else [] if value is None else value
        valid = isinstance(listed, list | tuple) and all(
            isinstance(number, int) and not isinstance(number, bool) and 0 <= number < self.size(below)
            for number in listed
        )
        if not valid:
            raise self.field_error(
                field, f"an integer from 0 to {below} - 1 = {self.size(below) - 1}, or a list of them"
            )
        return tuple(listed)

    def optional_index(self, field: str, *, default: int | None = None, below: str) -> int | None:
        """Read an integer from 0 to one less than the value of the field ``below``; None if it is null."""
        return None if self.fields.get(field, default) is None else self.index(field, default=default or 0, below=below)

    def size_pair(self, field: str, *, default: int | None = None) -> tuple[int, int]:
        """Read (height, width): a list of two integers, or one for both, from 1 to ``LARGEST_SIZE``."""
        value = self.fields.get(field, default)
        if isinstance(value, int):
            return self.size(field, default=default), self.size(field, default=default)
        valid = isinstance(value, list) and all(
            isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= LARGEST_SIZE for number in value
        )
        if not valid or len(value) != 2:
            raise self.field_error(field, f"an integer or a list of two, 1 to {LARGEST_SIZE}")
        return value[0], value[1]

    def sizes(self, field: str, *, default: tuple[int, ...]) -> tuple[int, ...]:
        """Read a list of one or more integers, each from 1 to ``LARGEST_SIZE``."""
        listed = self.fields.get(field, list(default))
        if not isinstance(listed, list) or not listed or not all(_is_size(number) for number in listed):
            raise self.field_error(field, f"a list of integers, 1 to {LARGEST_SIZE}")
        return tuple(listed)

    def listed(self, field: str, *, default: tuple[Any, ...]) -> tuple[Any, ...]:
        """Read a list whose members the dataclass checks."""
        listed = self.fields.get(field, list(default))
        if not isinstance(listed, list):
            raise self.field_error(field, "a list with a member for each stage")
        return tuple(listed)

    def names(self, field: str, *, default: tuple[str, ...]) -> tuple[str, ...]:
        """Read a list of strings."""
        listed = self.fields.get(field, list(default))
        if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
            raise self.field_error(field, "a list of strings")
        return tuple(listed)

    def flag(self, field: str, *, default: bool) -> bool:
        """Read true or false; null is the default."""
        return default if self.fields.get(field) is None else self._read_bool(field)

    def section(self, field: str) -> ConfigFile | None:
        """Read an object of fields, as a config of its own; None if it is absent or null."""
        value = self.fields.get(field)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.field_error(field, "an object, or null")
        return ConfigFile(value, self.path)

    def index(self, field: str, *, default: int, below: str) -> int:
        """Read an integer from 0 to one less than the value of the field ``below``."""
        if self.fields.get(field) is None:
            return default
        index = self._read_integer(field, lowest=0)
        if index >= self.size(below):
            raise self.field_error(field, f"less than {below}={self.size(below)}")
        return index

    def number(self, field: str, *, default: float, below: float = math.inf) -> float:
        """Read a finite number of 0 or more, less than ``below``."""
        value = self.fields.get(field, default)
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if not real or not math.isfinite(value) or not 0 <= value < below:
            raise self.field_error(
                field, "a number of 0 or more" + (f", less than {below:g}" if below < math.inf else "")
            )
        return float(value)

    def numbers(self, field: str) -> tuple[float, ...]:
        """Read a list of finite numbers."""
        listed = self.fields.get(field)
        if not isinstance(listed, list) or not all(
            isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
            for number in listed
        ):
            raise self.field_error(field, "a list of numbers")
        return tuple(map(float, listed))

    def layer_types(self, layers: int, valid: Iterable[str]) -> tuple[str, ...] | None:
        """Read the field "layer_types", one of ``valid`` for each layer; None if it is absent or null."""
        listed, options = self.fields.get("layer_types"), list(valid)
        if listed is None:
            return None
        if not isinstance(listed, list) or len(listed) != layers or not all(option in options for option in listed):
            raise self.field_error("layer_types", f"a list of {layers} strings, each one of {', '.join(options)}")
        return tuple(listed)

    def choice(self, field: str, valid: Iterable[str], *, default: str) -> str:
        """Read a string that is one of ``valid``."""
        options = list(valid)
        value = self.fields.get(field, default)
        if value not in options:
            raise self.field_error(field, "one of " + ", ".join(options))
        return str(value)

    def require(self, field: str, only: object, *, default: object) -> None:
        """Raise unless the field, or its default, has the value ``only``, the one that is supported."""
        if self.fields.get(field, default) != only:
            raise self.field_error(field, f"{json.dumps(only)}, the only supported value")

    def parse_dataclass(self, kind: type[Config]) -> Config:
        """Build the dataclass ``kind``, reading each field by its declared type; absent ones keep their defaults.

        Raises CheckpointError for values that the class refuses, too.
        """
        return self.build(kind, **self.read_fields(kind, get_type_hints(kind)))

    def read_fields(self, kind: Any, names: Iterable[str]) -> dict[str, Any]:
        """Read the fields ``names`` of the dataclass ``kind`` that are there, by their declared types."""
        types = get_type_hints(kind)
        return {name: self._read_field(name, types[name]) for name in names if name in self.fields}

    def build(self, kind: Callable[..., Config], **values: Any) -> Config:
        """Build the dataclass ``kind`` from ``values``, or call a function that does.

        Raises CheckpointError for values that the class refuses.
        """
        try:
            return kind(**values)
        except CheckpointError:
            raise
        except RegardError as error:
            raise CheckpointError(
                f"{self.path} describes a model that cannot be built: {error.what}",
                expected=error.expected,
                got=error.got,
                do="check that the file belongs to this model",
            ) from error

    def build_again(self, built: Config, **values: Any) -> Config:
        """Build a copy of a dataclass with other ``values``. Raises CheckpointError for values that it refuses."""
        kind: type[Config] = type(built)
        old = {field.name: getattr(built, field.name) for field in fields(cast("Any", built))}
        return self.build(kind, **(old | values))

    def _read_field(self, field: str, kind: Any) -> object:
        if kind is str:
            return self._read_string(field)
        if kind is float:
            return self.number(field, default=0.0)
        if kind is bool:
            return self._read_bool(field)
        if get_origin(kind) is Mapping:
            return self.options(field)
        if get_origin(kind) is tuple:
            return self.size_pair(field)
        if kind == str | None:
            return None if self.fields[field] is None else self._read_string(field)
        return self._read_integer(field, lowest=0) if kind is int else self.optional_integer(field)

    def _read_string(self, field: str) -> str:
        if not isinstance(self.fields[field], str):
            raise self.field_error(field, "a string")
        return str(self.fields[field])

    def _read_bool(self, field: str) -> bool:
        if not isinstance(self.fields[field], bool):
            raise self.field_error(field, "true or false")
        return bool(self.fields[field])

    def options(self, field: str) -> dict[str, Any]:
        """Read an object of numbers, strings, bools, nulls, and lists of these; it is empty if it is absent."""
        options = self.fields.get(field, {})
        if not isinstance(options, dict):
            raise self.field_error(field, _OPTIONS)
        for name, value in options.items():
            for member in _flatten(value):
                if not isinstance(member, _JSON_SCALARS):
                    raise self.field_error(field, _OPTIONS)
                if isinstance(member, int | float) and not (abs(member) <= LARGEST_SIZE or math.isinf(member)):
                    raise self.field_error(field, f"numbers of at most {LARGEST_SIZE}, also for {name!r}")
        return dict(options)

    def _read_integer(self, field: str, *, lowest: int) -> int:
        if field not in self.fields:
            raise CheckpointError(
                f"{self.path} lacks the field {field!r}",
                expected=f"an integer, {lowest} to {LARGEST_SIZE}",
                got="fields " + abbreviate_names(list(self.fields), 12),
                do="copy or download the folder again",
            )
        value = self.fields[field]
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= LARGEST_SIZE:
            raise self.field_error(field, f"an integer, {lowest} to {LARGEST_SIZE}")
        return value

    def field_error(self, field: str, expected: str) -> CheckpointError:
        """Build the error for a field whose value is not what is expected."""
        return CheckpointError(
            f"{self.path} has an unusable {field!r}",
            expected=expected,
            got=json.dumps(self.fields.get(field))[:80],
            do="check that the file belongs to this model",
        )


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LARGEST_SIZE


def to_json_text(fields: Mapping[str, Any]) -> str:
    """The text of a JSON file of a model folder, which people may read: indented, and in the characters themselves."""
    return json.dumps(dict(fields), indent=2, ensure_ascii=False) + "\n"


def read_json_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file. Raises CheckpointError if it is missing, too large, or not an object."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            raise ValueError(f"the file is larger than {_MAX_FILE_BYTES} bytes")
        fields = json.loads(content.decode("utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.parent} has no {path.name}",
            expected="a model folder in Hugging Face layout: config.json, model.safetensors, tokenizer.json",
            got=_list_entries(path.parent),
            do="pass the folder that holds config.json",
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} cannot be read", expected="a JSON object", got=str(error), do="copy or download the file again"
        ) from error
    if not isinstance(fields, dict):
        raise CheckpointError(
            f"{path} is not a JSON object",
            expected="an object: named fields in braces",
            got=type(fields).__name__,
            do="copy or download the file again",
        )
    return fields


def _list_entries(folder: Path) -> str:
    return abbreviate_names(sorted(entry.name for entry in folder.iterdir()), 12) or "an empty folder"


def _flatten(value: object) -> Iterator[object]:
    """Yield the items of a list, and of the lists in it; or the value itself."""
    if not isinstance(value, list):
        yield value
        return
    for member in value:
        yield from _flatten(member)
