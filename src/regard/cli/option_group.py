"""A dataclass as a parameter of a command: its fields are options, declared once for Python and for the shell.

A field is an option if it is declared (``regard.fields``), or if its type is ``Annotated`` for Typer. The options of a
field that is a dataclass itself stand in its place. A field whose option is not given has its default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, final, get_args, get_origin, get_type_hints

import typer

from regard.cli.argument_options import Spelling, spell_help
from regard.cli.completion import Completer, choice_completer, complete_mechanism, model_completer
from regard.fields import DeclaredField, declared_fields

Group = TypeVar("Group")
Changes = Mapping[str, Mapping[str, Any]]
"""A command's own facts about an option (``regard.fields``), or its default, by the name of the field."""


@final
class Option(NamedTuple):
    """An option: Typer's parameter, how its value is read, and the fields before which it stands."""

    parameter: inspect.Parameter
    read: Callable[[Any], Any]
    before: Collection[str] = ()

    def spell(self, value: Any) -> str:
        """The name in the shell; for False of a switch with two names, the one that turns it off."""
        flags = self.parameter.annotation.__metadata__[0].default.split("/")  # Typer's name of the first argument
        return str(flags[-1 if value is False else 0])


@final
class Before(NamedTuple):
    """The place of an option that a command declares itself, beside its Typer option: before this field's option."""

    field: str


@final
class GivenOptions:
    """The options of several groups, one for each name of a field, and their values."""

    def __init__(self, groups: Mapping[Any, Mapping[str, Option]], values: Mapping[str, Any]) -> None:
        self._groups, self._values = groups, values

    def of(self, kind: Any) -> dict[str, Any]:
        """The fields of the group ``kind`` that were given, for ``make_group``."""
        return _given(kind, self._groups[kind], self._values)

    def without_effect(self, kind: Any) -> dict[str, list[Any]]:
        """The options that were given though ``kind`` has none of them, each with the groups that have it."""
        found = {}
        for name, value in self._values.items():
            owners = [group for group, options in self._groups.items() if name in options]
            option = self._groups[owners[0]][name]
            if kind not in owners and value not in (None, [], option.parameter.default):
                found[option.spell(value)] = owners
        return found


def expand_option_groups(**changes: Mapping[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace each parameter of a command whose type is a dataclass by the options among the dataclass's fields.

    Typer sees the options at the place of the parameter, in the order of the fields, and the command is called with the
    dataclass made from their values. For a parameter of type ``Annotated[GivenOptions, A, B, ..]`` these are the
    options of the dataclasses A, B and so on. A dataclass with a class method ``from_options`` makes itself of the
    fields that were given. ``changes`` are what the command says otherwise of an option.
    """

    def expand(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        groups: dict[str, dict[Any, dict[str, Option]]] = {}
        listed: list[Option] = []
        for name, parameter in signature.parameters.items():
            groups[name] = {kind: options_of(kind, changes) for kind in _kinds(parameter.annotation)}
            merged = {
                option.parameter.name: option for group in reversed(groups[name].values()) for option in group.values()
            }
            order = dict.fromkeys(option for group in groups[name].values() for option in group)
            own = [Option(parameter, lambda value: value, _before(parameter.annotation))]
            listed += [merged[option] for option in order] if groups[name] else own

        @wraps(command)
        def expanded(**values: Any) -> None:
            arguments = {name: values.get(name) for name in groups}
            for name, group in groups.items():
                if len(group) == 1:
                    ((kind, options),) = group.items()
                    given = _given(kind, options, values)
                    arguments[name] = (
                        kind.from_options(given) if hasattr(kind, "from_options") else make_group(kind, given)
                    )
                elif group:
                    arguments[name] = GivenOptions(
                        group, {option: values[option] for owned in group.values() for option in owned}
                    )
            command(**arguments)

        vars(expanded).update(__signature__=signature.replace(parameters=_in_order(listed)))
        return expanded

    return expand


def options_of(kind: Any, changes: Changes, within: str = "") -> dict[str, Option]:
    """The options among the fields of a dataclass, by the fields' names after the name of the field ``within``."""
    annotations = get_type_hints(kind, include_extras=True)
    declared = {field.name: field for field in declared_fields(kind)}
    names = {name: Spelling(_flags(field)[0], is_switch=field.kind is bool) for name, field in declared.items()}
    found: dict[str, Option] = {}
    for field in fields(kind):
        name, annotation = within + field.name, annotations[field.name]
        if get_origin(annotation) is Annotated:
            parameter = _parameter(
                name, inspect.Parameter.empty if field.default is MISSING else field.default, annotation
            )
            found[name] = Option(parameter, lambda value: value, field.metadata.get("before", ()))
        elif field.name in declared and is_dataclass(declared[field.name].kind):
            found |= options_of(declared[field.name].kind, changes, f"{name}_")
        elif field.name in declared and declared[field.name].facts.get("option") != "":
            found[name] = _declared_option(name, declared[field.name], dict(changes.get(name, {})), names)
    return found


def option_of(kind: Any, name: str) -> Any:
    """Typer's option of a declared field, for a command that has no other option of its dataclass."""
    return options_of(kind, {})[name].parameter.annotation.__metadata__[0]


def _declared_option(
    name: str, declaration: DeclaredField, change: dict[str, Any], names: Mapping[str, Spelling]
) -> Option:
    """The option of a declared field. It has no default in the shell if the help says what the default is.

    ``names`` spell the arguments that the help names.
    """
    default, facts = change.pop("default", declaration.default), {**declaration.facts, **change}
    kind, read = declaration.kind, facts.get("parse", lambda value: value)
    if get_origin(kind) is tuple and "parse" not in facts:
        kind, read = list[get_args(kind)[0]], tuple  # type: ignore[misc]
    elif "parse" in facts:
        kind = facts.get("shell_kind", str)
    if default is MISSING:
        default = inspect.Parameter.empty
    elif "Default:" in facts["help"] or default in (None, (), {}):
        default = None
    is_bounded = "above" not in facts and kind in (int, float)
    minimum, maximum = facts.get(
        "shell_range", (facts.get("minimum"), facts.get("maximum")) if is_bounded else (None, None)
    )
    option = typer.Option(
        *_flags(declaration),
        metavar=facts.get("metavar", _METAVARS.get(kind, None if kind in (bool, int, float) else "NAME")),
        min=minimum,
        max=maximum,
        help=spell_help(facts["help"], names),
        show_default=default not in (None, inspect.Parameter.empty),
        autocompletion=_completer(facts),
        rich_help_panel=facts.get("panel"),
    )
    annotation: Any = Annotated[kind | None if default is None else kind, option]
    return Option(_parameter(name, default, annotation), read, facts.get("before", ()))


_METAVARS: Mapping[Any, str] = {Path: "PATH", list[Path]: "PATH"}


def _flags(declaration: DeclaredField) -> list[str]:
    """The names of the option of a declared field; one name if it is no option."""
    return (declaration.facts.get("option") or f"--{declaration.name.replace('_', '-')}").split()


def _completer(facts: Mapping[str, Any]) -> Completer | None:
    names = facts.get("completions", facts.get("choices", ()))
    if facts.get("completes") == "mechanisms":
        return complete_mechanism
    if facts.get("completes") == "models":
        return model_completer(names)
    return choice_completer(names) if names else None


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """The dataclasses of a parameter; none of one that is an option itself."""
    if get_origin(annotation) is Annotated and get_args(annotation)[0] is GivenOptions:
        return tuple(get_args(annotation)[1:])
    return (annotation,) if is_dataclass(annotation) else ()


def _before(annotation: Any) -> tuple[str, ...]:
    """The field before which an option of a command stands, if its type says one."""
    return tuple(fact.field for fact in getattr(annotation, "__metadata__", ()) if isinstance(fact, Before))


def _in_order(options: Iterable[Option]) -> list[inspect.Parameter]:
    """The parameters, each at its place, or before those that its option names."""
    options = list(options)
    parameters = [option.parameter for option in options if not option.before]
    for option in options:
        places = [place for place, other in enumerate(parameters) if other.name in option.before]
        if option.before:
            parameters.insert(min(places, default=len(parameters)), option.parameter)
    return [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in parameters]


def _given(kind: Any, options: Mapping[str, Option], values: Mapping[str, Any], within: str = "") -> dict[str, Any]:
    """The fields of a dataclass that were given as options, by name; of a field that is a dataclass its own fields."""
    given: dict[str, Any] = {}
    declared = {field.name: field.kind for field in declared_fields(kind)}
    for field in fields(kind):
        name = within + field.name
        if is_dataclass(declared.get(field.name)):
            given[field.name] = _given(declared[field.name], options, values, f"{name}_")
        elif name in options and values[name] is not None:
            given[field.name] = options[name].read(values[name])
    return given


def make_group(kind: Callable[..., Group], given: Mapping[str, Any]) -> Group:
    """Make a dataclass of the fields that were given, by name; a field that is a dataclass itself of its own fields."""
    inner: dict[str, Any] = {
        declared.name: declared.kind for declared in declared_fields(kind) if is_dataclass(declared.kind)
    }
    return kind(**{name: make_group(inner[name], value) if name in inner else value for name, value in given.items()})
