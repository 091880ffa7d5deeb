"""The options of the running command in place of arguments of Python, in messages (``regard.marked_arguments``).

An argument is spelled as an option if the command has one for a parameter of its name, or for the field of its name in
a group of options, such as ``steps`` in ``settings_steps``. Any other stays as Python writes it.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, final

from regard.marked_arguments import replace_arguments


@final
class Spelling(NamedTuple):
    """The names of an option in the shell: ``off`` turns a switch off; a repeated option is given once a value."""

    name: str
    off: str | None = None
    is_switch: bool = False
    is_repeated: bool = False


_running: dict[str, Spelling] = {}


def use_options_of(parameters: Iterable[Any]) -> None:
    """Spell the arguments of messages as these parameters of the running command from now on."""
    _running.clear()
    for parameter in parameters:
        names = [name for name in getattr(parameter, "opts", ()) if name.startswith("--")]
        if names and parameter.name:
            off = next(iter(parameter.secondary_opts), None)
            _running[parameter.name] = Spelling(names[0], off, getattr(parameter, "is_flag", False), parameter.multiple)


def spelled_option(argument: str) -> str | None:
    """The name of the running command's option for an argument; None if it has none."""
    option = _find(_running, argument)
    return None if option is None else option.name


def spell_for_shell(message: str, options: Mapping[str, Spelling] | None = None) -> str:
    """Replace the marked arguments of a message by options: ``options``, or the options of the running command."""
    return _replace(message, _running if options is None else options, lambda name: None)


def spell_help(text: str, options: Mapping[str, Spelling]) -> str:
    """Replace the marked arguments of a help text by ``options``, or by options of their own names."""
    return _replace(text, options, lambda name: Spelling(_option_name(name)))


def _replace(message: str, options: Mapping[str, Spelling], otherwise: Callable[[str], Spelling | None]) -> str:
    def spell(name: str, value: ast.expr | None) -> str | None:
        option = _find(options, name) or otherwise(name)
        return None if option is None else _spell_option(option, value)

    return replace_arguments(message, spell)


def _option_name(argument: str) -> str:
    return "--" + argument.replace("_", "-")


def _find(options: Mapping[str, Spelling], name: str) -> Spelling | None:
    name = name.lower()
    grouped = [option for parameter, option in options.items() if parameter.endswith(f"_{name}")]
    by_option = [option for option in options.values() if option.name == _option_name(name)]
    return next(iter([options[name]] if name in options else [*by_option, *grouped]), None)


def _spell_option(option: Spelling, value: ast.expr | None) -> str:
    """An option with its value; without one if the value is left open, or has no form in the shell."""
    try:
        given = None if value is None else ast.literal_eval(value)
    except ValueError:
        given = None
    if option.is_switch:
        return option.off if given is False and option.off else option.name
    words = _words(given)
    if words is None:
        return option.name
    if isinstance(given, dict) or option.is_repeated:
        return " ".join(f"{option.name} {shlex.quote(word)}" for word in words)
    return f"{option.name} {shlex.quote(','.join(words))}"


def _words(value: object) -> Sequence[str] | None:
    """The parts of a value in the shell; None if one of them is left open."""
    if isinstance(value, dict):
        return [f"{name}={'...' if setting is ... else setting}" for name, setting in value.items()]
    parts = list(value) if isinstance(value, tuple | list) else [value]
    if any(part in (None, ..., "...") or isinstance(part, dict | tuple | list) for part in parts):
        return None
    return [str(part) for part in parts] or None
