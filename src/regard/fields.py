"""Fields of dataclasses, each declared once: its help, its range, and its name in a published config.json.

    width: int = field(default=768, metadata=declare("size of hidden states", minimum=1, stored="hidden_size"))

The declaration is the metadata of an ordinary dataclass field, so type checkers see plain dataclasses, and name, type
and default come from the field. From them follow the check (``check_fields``, which ``__post_init__`` calls), the
arguments in the docstring (``describe_arguments``, which ``explain_arguments`` adds), a table for the documentation
(``format_table``), and the fields of a config.json (``models.config_file``). A subclass that gives a field another
default keeps its declaration. ``declared_fields`` is for whatever else follows from them, such as the options of a
command (``cli.option_group``) and what is written to run.json (``tasks.recipe_fields``).
"""

from __future__ import annotations

import textwrap
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import cache
from typing import Any, NamedTuple, TypedDict, Union, Unpack, final, get_args, get_origin, get_type_hints

from regard.errors import (
    LARGEST_COUNT,
    LARGEST_SIZE,
    OptionError,
    check_choice,
    check_count,
    check_dropout,
    check_flag,
    check_kind,
    check_number,
    short_repr,
)
from regard.marked_arguments import without_marks


@final
class Facts(TypedDict, total=False):
    """The declaration of a field beside its help. In a tuple the range applies to each number.

    least, above, most      the range of a number
    below                   the name of the field that a number is less than: an index of a vocabulary
    divides                 the name of the field that a number divides
    is_probability          whether a number is a probability below 1
    choices                 valid strings; without them the strings of ``stored_names``
    noun                    what messages call the value; without it the name of its field, for a choice of a class with
                            a ``model_name`` "activation of a BERT"
    example                 what to do about a value of the wrong class; classes and mappings are checked if it is there
    check                   a function of name and value that checks in place of the type and the range
    stored                  the name in a published config.json
    stored_names            the strings there, and ours; the first of several for one of ours is written
    required                whether a config.json must have the field
    absent                  the value in place of a field that a config.json lacks, if that is not the default
    read, write             functions that read it from ``(ConfigFile, stored)`` and write it, if it has another form

    Of an option of a command:

    option                  its name in the shell, if that is not the field's; "" if it is no option
    metavar, panel          the word for its value, and its panel, in the help
    before                  the fields before which it stands, if that is not its place among the fields
    completions             names that a shell completes, if not ``choices``
    completes               what it completes beside them: "models", which are folders, or "mechanisms"
    parse, shell_kind       a function that reads the value from the shell's value, and its type there, if not a text
    shell_range             the range that the shell checks and shows, if that is not the field's
    is_saved                whether a run is resumed only with the same value, which it is by default
    of_new_model            whether it has no effect on a trained model that training starts from
    """

    minimum: float
    above: float
    maximum: float
    below: str
    divides: str
    is_probability: bool
    choices: Collection[str]
    noun: str
    example: str
    check: Callable[[str, Any], None]
    stored: str
    stored_names: Mapping[str, str]
    required: bool
    absent: Any
    read: Callable[[Any, str], Any]
    write: Callable[[Any], Any]
    option: str
    metavar: str
    panel: str
    before: tuple[str, ...]
    completions: tuple[str, ...]
    completes: str
    parse: Callable[[Any], Any]
    shell_kind: Any
    shell_range: tuple[float | None, float | None]
    is_saved: bool
    of_new_model: bool


def declare(text: str, **facts: Unpack[Facts]) -> dict[str, Any]:
    """Build the metadata of a field from its help and its facts.

    The help is a phrase, or sentences. Arguments in it are marked (``regard.marked_arguments``).
    """
    return {"help": text, **facts}


SIZE: Facts = {"minimum": 1, "maximum": LARGEST_SIZE}
"""The range of a size."""


def option_field(default: Any, text: str, **facts: Unpack[Facts]) -> Any:
    """A declared field of a dataclass with a default."""
    return field(default=default, metadata=declare(text, **facts))


@final
class DeclaredField(NamedTuple):
    """A field with its declaration.

    ``kind`` is its type without None, ``is_optional`` whether None is valid, and ``facts`` the metadata.
    """

    name: str
    kind: Any
    is_optional: bool
    default: Any
    facts: Mapping[str, Any]


def declared_fields(kind: Any) -> tuple[DeclaredField, ...]:
    """The fields of the dataclass ``kind`` that are declared, in their order, with those that it inherits."""
    return _find_declared_fields(kind)


@cache
def _find_declared_fields(kind: Any) -> tuple[DeclaredField, ...]:
    types_by_name = get_type_hints(kind)
    found = []
    for entry in fields(kind):
        facts = _inherited_metadata(kind, entry.name)
        if "help" in facts:
            members = get_args(types_by_name[entry.name])
            is_union = get_origin(types_by_name[entry.name]) in (types.UnionType, Union)
            plain = [member for member in members if member is not type(None)] if is_union else []
            found.append(
                DeclaredField(
                    entry.name,
                    plain[0] if len(plain) == 1 else types_by_name[entry.name],
                    is_union and len(plain) < len(members),
                    _default(entry),
                    facts,
                )
            )
    return tuple(found)


def check_fields(value: Any) -> None:
    """Check the declared fields of a dataclass by their types and ranges, in their order. Raises OptionError.

    Messages mark the name of a field that is an option of a command: the class has a ``fields_are_options``.
    """
    for declared in declared_fields(type(value)):
        part = getattr(value, declared.name)
        if part is None and declared.is_optional:
            continue
        if "check" in declared.facts:
            declared.facts["check"](declared.name, part)
        elif get_origin(declared.kind) is tuple:
            _check_tuple(declared, value, part)
        else:
            _check_value(declared, value, declared.name, part, declared.kind)


def _check_tuple(declared: DeclaredField, owner: Any, value: Any) -> None:
    """Raise OptionError unless ``value`` is a tuple of the declared length, if there is one, and of such members."""
    members = get_args(declared.kind)
    is_fixed = ... not in members
    if is_fixed and (not isinstance(value, tuple) or len(value) != len(members)):
        raise OptionError(
            f"wrong {declared.name}",
            expected=f"a tuple of {len(members)} integers",
            got=short_repr(value),
            do=f"{declared.name}={(28,) * len(members)}",
        )
    check_kind(declared.name, value, tuple, do=declared.facts.get("example", f"for example {declared.name}=(2, 2)"))
    kind = _member_kind(declared.kind)
    name = f"number in {declared.name}" if kind in (int, float) and not is_fixed else declared.name
    for member in value:
        if member is not None or type(None) not in get_args(members[0]):
            _check_value(declared, owner, name, member, kind)


def _check_value(declared: DeclaredField, owner: Any, name: str, value: Any, kind: Any) -> None:
    """Raise OptionError unless ``value``, which messages call ``name``, is of this kind and in the declared range."""
    facts = declared.facts
    is_option = name == declared.name and facts.get("option") != "" and getattr(owner, "fields_are_options", False)
    name = facts.get("noun", f"`{name}`" if is_option and kind in (int, float, bool) else name)
    if "choices" in facts or "stored_names" in facts:
        noun = f"{name} of a {owner.model_name}" if hasattr(owner, "model_name") else name
        valid = facts.get("choices") or set(facts["stored_names"].values())
        check_choice(facts.get("noun", noun), value, valid)
    elif kind is bool:
        check_flag(name, value)
    elif facts.get("is_probability"):
        check_dropout(value)
    elif kind is int:
        maximum = getattr(owner, facts["below"]) - 1 if "below" in facts else facts.get("maximum", LARGEST_COUNT)
        check_count(name, value, minimum=facts.get("minimum", 0), maximum=maximum)
        if "divides" in facts:
            _check_divisor(name, value, facts["divides"], getattr(owner, facts["divides"]))
    elif kind is float:
        check_number(
            name, value, **{bound: facts[bound] for bound in ("minimum", "above", "maximum") if bound in facts}
        )
    elif "example" in facts or (kind is str and declared.is_optional):
        check_kind(name, value, get_origin(kind) or kind, do=facts.get("example", f"leave {name} out for the default"))


def _check_divisor(name: str, value: int, whole: str, size_of_whole: int) -> None:
    if size_of_whole % value:
        raise OptionError(
            f"{whole} is not divisible by {name}",
            expected=f"a multiple of {name}",
            got=f"{whole}={size_of_whole}, {name}={value}",
            do=f"choose another number of {name.replace('_', ' ')}",
        )


def describe_arguments(kind: type[Any]) -> str:
    """The lines of a docstring that say what the declared fields of a dataclass are; "" if there are none."""
    lines = []
    for entry in fields(kind):
        facts = _inherited_metadata(kind, entry.name)
        if "help" in facts:
            text = f"{entry.name}: {without_marks(facts['help']).removesuffix('.')}."
            lines += textwrap.wrap(text, 112, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(["Args:", *(f"    {line}" for line in lines)]) if lines else ""


def format_table(kind: type[Any], *, has_options: bool = False) -> str:
    """A Markdown table of the declared fields: name, default, name in a published config.json if any, help.

    ``has_options`` adds their names in the shell.
    """
    declared = declared_fields(kind)
    columns = {"in config.json": [entry.facts.get("stored") for entry in declared]}
    if has_options:
        names = [entry.facts.get("option", f"--{entry.name.replace('_', '-')}") for entry in declared]
        columns["option"] = [
            "" if is_dataclass(entry.kind) else name for entry, name in zip(declared, names, strict=True)
        ]
    columns = {head: names for head, names in columns.items() if any(names)}
    heads = ["field", "default", *columns, "meaning"]
    rows = [heads, ["---"] * len(heads)]
    for number, entry in enumerate(declared):
        default = "" if entry.default is MISSING else f"`{short_repr(entry.default)}`"
        shown = [f"`{listed[number]}`" if listed[number] else "" for listed in columns.values()]
        rows.append([f"`{entry.name}`", default, *shown, entry.facts["help"].replace("|", "\\|")])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def repr_of_fields(value: Any) -> str:
    """Format a dataclass that holds arrays or long lists on one line, arrays by dtype and shape.

    Set as ``__repr__`` in the class: the ``__repr__`` of dataclasses writes every number, which may be megabytes, into
    tracebacks.
    """
    shown = ", ".join(f"{part.name}={short_repr(getattr(value, part.name))}" for part in fields(value) if part.repr)
    return f"{type(value).__name__}({shown})"


def repr_of_shapes(value: Any) -> str:
    """Format an output of a model on one line: tensors by their shapes, lists of them by their number."""
    shown = ", ".join(f"{part.name} {_format_shape(getattr(value, part.name))}" for part in fields(value))
    return f"{type(value).__name__}({shown})"


def _format_shape(value: Any) -> object:
    if isinstance(value, Mapping):
        return {name: _format_shape(tensor) for name, tensor in value.items()}
    if isinstance(value, tuple):
        return f"{len(value)} tensors"
    return tuple(value.shape) if hasattr(value, "shape") else value


def _inherited_metadata(kind: type[Any], name: str) -> Mapping[str, Any]:
    """The metadata of a field, of the class nearest to ``kind`` that declares it."""
    for base in kind.__mro__:
        if is_dataclass(base) and name in base.__dataclass_fields__ and base.__dataclass_fields__[name].metadata:
            return base.__dataclass_fields__[name].metadata
    return {}


def _default(declared: Field[Any]) -> Any:
    return declared.default if declared.default_factory is MISSING else declared.default_factory()


def _member_kind(kind: Any) -> Any:
    """The type of the members of a tuple, without None."""
    member = get_args(kind)[0]
    return next((candidate for candidate in get_args(member) if candidate is not type(None)), member)
