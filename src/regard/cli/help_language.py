"""Help and messages about usage in the reader's language, where Typer prints them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import pairwise
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from regard.cli.shared_options import make_language_option
from regard.language import LANGUAGES, language_in_use, translate, translate_message

Command = TypeVar("Command", bound=TyperCommand | TyperGroup)
_CONSTANTS = (
    "DEFAULT_STRING",
    "REQUIRED_LONG_STRING",
    "ARGUMENTS_PANEL_TITLE",
    "OPTIONS_PANEL_TITLE",
    "COMMANDS_PANEL_TITLE",
    "ERRORS_PANEL_TITLE",
    "ABORTED_TEXT",
    "RICH_HELP",
)
"""The strings of ``typer.rich_utils`` that are shown; none of their languages is Chinese."""
FIXED_STRINGS = (
    "Usage: ",
    "Arguments",
    "Options",
    "Commands",
    "Error",
    "Aborted.",
    "[default: {}]",
    "[required]",
    "Show this message and exit.",
    "Install completion for the current shell.",
    "Show completion for the current shell, to copy it or customize the installation.",
    "Try [blue]'{command_path} {help_option}'[/] for help.",
    "No such option: {0}",
    "No such option: {0} (Possible options: {1})",
    "No such option: {0} Did you mean {1}?",
    "No such command {0}.",
    "No such command {0}. Did you mean {1}?",
    "Missing command.",
    "Missing option {0}.",
    "Missing argument {0}.",
    "Invalid value for {0}: {1}",
    "Option {0} requires an argument.",
    "Option {0} does not take a value.",
    "Got unexpected extra argument ({0})",
    "Got unexpected extra arguments ({0})",
    "Input should be a valid integer, unable to parse string as an integer",
    "Input should be a valid number, unable to parse string as a number",
    "Input should be greater than or equal to {0}",
    "Input should be less than or equal to {0}",
)
"""The English strings of Typer that a reader may see."""


def find_language(arguments: Sequence[str]) -> str | None:
    """The last value of ``--lang`` among the arguments of the command; None if it is not given, or unknown.

    It is read before the options are, so that it holds for help and for all errors.
    """
    options = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    joined = (f"{word}={value}" if word == "--lang" else word for word, value in pairwise([*options, ""]))
    values = [word.removeprefix("--lang=") for word in joined if word.startswith("--lang=")]
    return next((value for value in reversed(values) if value in LANGUAGES), None)


def find_own_words(arguments: Sequence[str]) -> set[str]:
    """The words among the arguments that messages repeat as they were typed, such as the name of a folder."""
    return {word.rstrip("/") for word in arguments if word[:1] not in ("", "-") and not re.search(r"\s", word)}


def help_paragraphs(text: str | None) -> Iterator[str]:
    """The paragraphs of a help text that are translated: not the examples, which begin with spaces."""
    for paragraph in (text or "").split("\n\n"):
        if paragraph.strip() and not paragraph.startswith("  "):
            yield paragraph.strip("\n")


def _translate_paragraphs(text: str | None) -> str | None:
    for paragraph in help_paragraphs(text):
        text = (text or "").replace(paragraph, translate(paragraph))
    return text


def _in_language(command: Any) -> Any:
    """A copy of a command, with its help in the language in use; the command itself in English."""
    if language_in_use() == "en":
        return command
    shown = copy(command)
    shown.help, shown.epilog = _translate_paragraphs(command.help), _translate_paragraphs(command.epilog)
    shown.get_params = lambda ctx: [_parameter_in_language(parameter) for parameter in command.get_params(ctx)]
    if hasattr(command, "commands"):
        shown.commands = {name: _in_language(inner) for name, inner in command.commands.items()}
    return shown


def with_language(kind: type[Command]) -> type[Command]:
    """Decorate a class of commands: they have ``--lang``, and their help and usage are in the language in use."""
    initialize, format_help, get_usage = kind.__init__, kind.format_help, kind.get_usage

    def initialize_with_option(self: Any, *arguments: Any, **facts: Any) -> None:
        initialize(self, *arguments, **facts)
        self.params.append(make_language_option())

    def format_translated(self: Any, ctx: Any, formatter: Any) -> None:
        format_help(_in_language(self), ctx, formatter)

    def get_translated(self: Any, ctx: Any) -> str:
        return get_usage(self, ctx).replace("Usage: ", translate("Usage: "), 1)

    kind.__init__ = initialize_with_option  # type: ignore[method-assign]
    kind.format_help, kind.get_usage = format_translated, get_translated  # type: ignore[method-assign]
    return kind


def _parameter_in_language(parameter: Any) -> Any:
    shown = copy(parameter)
    shown.help = _translate_paragraphs(getattr(parameter, "help", None))
    shown.rich_help_panel = _translate_paragraphs(getattr(parameter, "rich_help_panel", None))
    return shown


_HAN = r"\u2e80-\u2fdf\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_OPENING, _CLOSING = "（“《「", "，。：；、！？）”》」"
_WORD = re.compile(rf"\s*[{_OPENING}]*(?:[{_HAN}]|[^\s{_HAN}{_OPENING}{_CLOSING}]+)[{_CLOSING}]*\s*|\s*\S\s*")
"""The parts between which a line may be broken: a Chinese character with its punctuation, or letters between spaces."""


@contextmanager
def typer_in_language() -> Iterator[None]:
    """Have Typer's own titles and messages in the language in use, and rich break lines between Chinese characters.

    By itself rich breaks lines at spaces alone, and cuts off a longer sentence in a table.
    """
    if language_in_use() == "en":
        yield
        return
    from rich import _wrap
    from rich.text import Text
    from typer import rich_utils

    english = {name: getattr(rich_utils, name) for name in _CONSTANTS}
    re_word, rstrip_end = _wrap.re_word, Text.rstrip_end
    vars(rich_utils).update({name: translate(text) for name, text in english.items()})
    _wrap.re_word, Text.rstrip_end = _WORD, _strip_end  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        vars(rich_utils).update(english)
        _wrap.re_word, Text.rstrip_end = re_word, rstrip_end  # type: ignore[method-assign]


def _strip_end(line: Any, size: int) -> None:
    """Remove spaces that stand beyond the width of a line, in cells: rich counts a wide character as one."""
    if line.cell_len > size:
        line.rstrip()


@contextmanager
def usage_errors_in_language() -> Iterator[None]:
    """Translate an error of usage: an unknown option, or a value of the wrong type."""
    try:
        yield
    except typer.TyperException as error:
        if language_in_use() != "en":
            message = translate_message(re.sub(r"\s+", " ", error.format_message()))
            error.format_message = lambda: message  # type: ignore[method-assign]
        raise
